"""The device stage: batches are finished on the user's device, ahead of the user's loop."""
