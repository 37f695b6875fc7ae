"""Damaged and hostile inputs: states, checkpoints, images, records and indices, mutated at random.

Each is read as a valid value, or refused by an error that the reader's documentation names:
docs/robustness.md.
"""
