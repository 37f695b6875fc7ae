"""The device stage finishes batches on the user's GPU, ahead of the user's loop."""
