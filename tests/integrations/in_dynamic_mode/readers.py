"""Readers of dynamic mode, this package's and DALI's, and their content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import nvidia.dali.experimental.dynamic as ndd

from stateful_gpu_loader.integrations.dali_dynamic import StatefulReader

BATCH = 4
EPOCHS = 4
Content = tuple[list[int], list[bytes]]


def content(batch: Any) -> Content:
    """Return labels and encoded images."""
    images, labels = batch
    return (
        [int(np.asarray(label).item()) for label in labels.tensors],
        [np.asarray(image).tobytes() for image in images.tensors],
    )


def arguments(root: str, **changes: Any) -> dict[str, Any]:
    return {"file_root": root, "random_shuffle": True, "seed": 1234, "initial_fill": 6, **changes}


def build(root: str, **changes: Any) -> StatefulReader:
    return StatefulReader(ndd.readers.File, **arguments(root, **changes))


def resumed(root: str, state: dict[str, Any], **changes: Any) -> StatefulReader:
    reader = build(root, **changes)
    reader.load_state_dict(json.loads(json.dumps(state)))
    return reader


def raw(root: str, **changes: Any) -> Any:
    return ndd.readers.File(**arguments(root, enable_checkpointing=True, **changes))


def epochs(reader: Any, count: int = EPOCHS) -> list[list[Content]]:
    return [[content(batch) for batch in reader.next_epoch(batch_size=BATCH)] for _ in range(count)]


def after(reader: StatefulReader, batches: int) -> Iterator[Any]:
    """Return the iterator of an epoch after some batches."""
    epoch = reader.next_epoch(BATCH)
    for _ in range(batches):
        next(epoch)
    return epoch
