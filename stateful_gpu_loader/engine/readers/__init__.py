"""Readers read the samples of requests without ``dataset[index]``."""
