"""Policies: which operation, and how strong, is drawn for each image."""
