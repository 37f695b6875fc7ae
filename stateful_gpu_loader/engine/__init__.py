"""Requests in, batches out, in order: inline, in threads, or in processes."""
