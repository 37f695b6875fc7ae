"""Where pixels go: crops, resizes, flips, rotations, affine maps."""
