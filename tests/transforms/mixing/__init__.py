"""Tests of transforms/mixing."""
