"""Tests of transforms/batches."""
