"""Tests of transforms/values."""
