"""Workers execute requests: the user's own thread, threads, or processes."""
