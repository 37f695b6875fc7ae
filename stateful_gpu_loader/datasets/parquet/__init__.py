"""Parquet files of encoded images and their targets."""
