"""From keys or a cursor to samples."""
