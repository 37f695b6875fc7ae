"""The tools of the command line, as functions that return values."""
