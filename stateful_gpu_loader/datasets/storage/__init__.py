"""File access, local or by fsspec URL: ranges, streams and kept indices."""
