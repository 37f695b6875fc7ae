"""Contents of a state: schema, fingerprint, positions, and states of the user's objects."""
