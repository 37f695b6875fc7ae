"""Whole batches, of any sizes, on any device: folded, resampled in one launch, grouped."""
