"""Counter-based random numbers, keyed permutations, and the states of generators."""
