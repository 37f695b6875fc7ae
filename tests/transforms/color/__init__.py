"""Tests of transforms/color."""
