"""Counter-based random numbers, keyed permutations, and generator states."""
