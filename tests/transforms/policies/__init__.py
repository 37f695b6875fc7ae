"""Tests of transforms/policies."""
