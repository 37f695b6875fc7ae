"""Image files: from class folders, a file list, or paths given in Python."""
