"""Encoded images and their targets in Parquet files."""
