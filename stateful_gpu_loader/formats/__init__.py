"""How records lie in files: one file a format, from bytes to records and nothing else."""
