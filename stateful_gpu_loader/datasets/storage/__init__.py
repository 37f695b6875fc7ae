"""Bytes of files, local or by fsspec URL: by range, as a stream, and the indices kept of them."""
