"""Parts of a DALI pipeline as a loader: its graph, data, batches and state."""
