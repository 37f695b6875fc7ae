"""MXNet's RecordIO files of images."""
