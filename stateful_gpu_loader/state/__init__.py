"""What a state holds: its schema, fingerprints, positions, and states of the user's objects."""
