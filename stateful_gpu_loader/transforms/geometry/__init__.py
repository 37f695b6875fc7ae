"""Recipes that move pixels: crops, resizes, flips, rotations, affine maps."""
