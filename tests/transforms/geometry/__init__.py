"""Tests of transforms/geometry."""
