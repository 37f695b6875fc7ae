"""Readers get the samples of a request that are not read by ``dataset[index]``."""
