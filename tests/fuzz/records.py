"""Batches as plain values that can be compared, kept, and printed in a line."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import numpy as np
import torch

Record = Any
"""Nested tuples that end in leaves ``(type, shape, bytes)``; equal only if bit for bit equal."""


def record_of(batch: Any) -> Record:
    """Return a copy of a batch, or of a part of it, which later batches cannot change."""
    if isinstance(batch, torch.Tensor):
        batch = batch.detach().cpu().contiguous()
        return str(batch.dtype), tuple(batch.shape), batch.numpy().tobytes()
    if isinstance(batch, np.ndarray):
        return f"numpy.{batch.dtype}", batch.shape, batch.tobytes()
    if isinstance(batch, dict):
        return tuple((key, record_of(part)) for key, part in batch.items())
    if isinstance(batch, (list, tuple)):
        return tuple(record_of(part) for part in batch)
    return type(batch).__name__, (), repr(batch).encode()


def samples_of(batch: Any) -> list[Record]:
    """Return the samples of a batch from ``default_collate``, one record for each."""
    return [record_of(_sample(batch, i)) for i in range(_size(batch))]


def failure_of(error: Exception) -> Record:
    """Return the record of an exception in a batch's place: its type, and its sample."""
    named = re.search(r"no sample \d+|photo_\d+", str(error))
    return "raised", (), f"{type(error).__name__} {named and named[0]}".encode()


def is_failure(record: Record) -> bool:
    """Return whether it is a failure, or the failure of the only rank."""
    return record[0] == "raised" or (len(record) == 1 and is_failure(record[0]))


def leaves(record: Record) -> list[tuple[str, tuple[int, ...], bytes]]:
    """Yield the leaves of a record, in order."""
    if len(record) == 3 and isinstance(record[2], bytes):
        return [record]
    parts = (part[1] if isinstance(part[0], str) and len(part) == 2 else part for part in record)
    return [leaf for part in parts for leaf in leaves(part)]


def numbers_of(leaf: tuple[str, tuple[int, ...], bytes]) -> list[int]:
    """Return the integers of a leaf: indices of samples."""
    name, _, data = leaf
    if name == "int":
        return [int(data)]
    return [int(number) for number in np.frombuffer(data, np.dtype(name.split(".")[-1]))]


def shown(record: Record) -> str:
    """Return a readable form: short leaves by their values, others by a digest."""
    if record is None:
        return "nothing"
    found = []
    for name, shape, data in leaves(record):
        if "." in name and len(data) <= 64:
            found.append(str(np.frombuffer(data, np.dtype(name.split(".")[-1])).tolist()))
        elif "." not in name:
            found.append(data.decode())
        else:
            found.append(f"{name}{list(shape)} {hashlib.sha256(data).hexdigest()[:8]}")
    return " ".join(found)


def _size(batch: Any) -> int:
    if isinstance(batch, torch.Tensor):
        return len(batch)
    if isinstance(batch, dict):
        return _size(next(iter(batch.values())))
    return len(batch) if isinstance(batch[0], str) else _size(batch[0])


def _sample(batch: Any, i: int) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch[i]
    if isinstance(batch, dict):
        return {key: _sample(part, i) for key, part in batch.items()}
    return batch[i] if isinstance(batch[0], str) else [_sample(part, i) for part in batch]
