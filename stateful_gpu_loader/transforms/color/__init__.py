"""What colors become, and what is blurred, sharpened or erased."""
