"""Other dtypes, ranges and layouts of the same pixels."""
