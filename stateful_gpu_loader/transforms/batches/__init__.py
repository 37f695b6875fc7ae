"""Whole batches of images of any sizes: folding, resampling in one launch, grouping."""
