"""The parts of a DALI pipeline as a loader: its graph, its data, its batches and its state."""
