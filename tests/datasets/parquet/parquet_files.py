"""Parquet files written by pyarrow."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from tests.images import write_photo_folder


def write_table(
    path: Path, columns: dict[str, Any], row_group_size: int = 4, **options: Any
) -> str:
    """Write columns (lists, or pyarrow arrays) to a file; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.table(columns)
    pyarrow.parquet.write_table(table, path, row_group_size=row_group_size, **options)
    return str(path)


def images(count: int, first: int = 0) -> list[bytes]:
    """Return ``count`` different byte strings that stand for images."""
    return [f"image {number}".encode() * (number % 5 + 1) for number in range(first, first + count)]


def hub_images(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Return the same images as the Hugging Face hub stores them."""
    return [
        {"bytes": data, "path": f"{first + i}.jpg"} for i, data in enumerate(images(count, first))
    ]


def write_photos(folder: Path, counts: tuple[int, ...] = (8, 5), **options: Any) -> list[str]:
    """Write real JPEG photographs as the hub stores them, in row groups of 3; return the paths."""
    with tempfile.TemporaryDirectory() as photos:
        files = write_photo_folder(photos, num_classes=1, per_class=sum(counts), seed=3)
        contents = [path.read_bytes() for path in files]
    paths, first = [], 0
    for number, count in enumerate(counts):
        rows = [{"bytes": each, "path": None} for each in contents[first : first + count]]
        columns = {"image": rows, "label": list(range(first, first + count))}
        paths.append(
            write_table(
                folder / f"train-{number:05d}.parquet", columns, row_group_size=3, **options
            )
        )
        first += count
    return paths
