"""From a state to a place in a pass, and back."""
