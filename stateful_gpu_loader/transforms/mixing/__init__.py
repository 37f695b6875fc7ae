"""Batch recipes: samples of one batch mixed with each other, labels too."""
