"""What connects this package with others; each module needs its package alone."""
