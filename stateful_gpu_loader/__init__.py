"""A DataLoader that brings back exactly the stream that was interrupted."""
