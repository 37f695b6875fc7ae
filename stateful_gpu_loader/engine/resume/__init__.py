"""Converts a state to a position in a pass, and back."""
