"""What makes a batch of a request: anywhere, at any time."""
