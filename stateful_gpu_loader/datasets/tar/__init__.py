"""WebDataset tars: by index, and as streams."""
