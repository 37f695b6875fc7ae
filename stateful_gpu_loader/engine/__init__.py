"""The engine turns requests into batches, in order: inline, in threads, or in processes."""
