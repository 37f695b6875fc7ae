"""WebDataset tars, indexed or streamed."""
