"""Hugging Face datasets of images, written to disk and mapped into memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import datasets


def dataset_of(files: Sequence[tuple[bytes, int]], **columns: Any) -> datasets.Dataset:
    """Return an in-memory dataset of encoded images, their classes, and further columns."""
    import datasets

    datasets.disable_progress_bars()
    features = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(names=[f"class {i}" for i in range(9)])
    )
    rows = {
        "image": [{"bytes": data, "path": None} for data, _ in files],
        "label": [label for _, label in files],
    }
    dataset = datasets.Dataset.from_dict(rows, features=features)
    for name, values in columns.items():
        dataset = dataset.add_column(name, values)
    return dataset


def save_dataset(folder: Path, files: Sequence[tuple[bytes, int]], **columns: Any) -> Path:
    """Write :func:`dataset_of`; return the folder."""
    dataset_of(files, **columns).save_to_disk(str(folder))
    return folder
