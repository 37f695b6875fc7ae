"""Samples that DALI's readers and its iterator deliver on the CPU, batch by batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lmdb

POLICIES = ("fill", "drop", "partial")


def write_numbered_lmdb(folder: Path, n: int) -> str:
    """Write a Caffe LMDB of n records whose labels are their indices, once per folder."""
    path = folder / f"numbered_{n}"
    if not path.exists():
        with lmdb.open(str(path), map_size=1 << 20) as env, env.begin(write=True) as transaction:
            for index in range(n):
                transaction.put(f"{index:08d}".encode(), _datum(index))
    return str(path)


def write_numbered_files(folder: Path, n: int) -> dict[str, list[Any]]:
    """Write n files with their indices as labels; return arguments of ``fn.readers.file``."""
    files = [folder / f"{index:03d}.bin" for index in range(n)]
    for file in files:
        file.write_bytes(b"x")
    return {"files": [str(file) for file in files], "labels": list(range(n))}


def dali_epochs(
    folder: Path,
    n: int,
    batch_size: int,
    *,
    epochs: int,
    last_batch_policy: str = "fill",
    reader: str = "caffe",
    **arguments: Any,
) -> list[list[list[int]]]:
    """Return each epoch's batches of indices from ``fn.readers``, by DALIGenericIterator.

    Batches without samples are left out.

    Args:
        folder: where files are written.
        n: number of samples.
        reader: ``"caffe"`` or ``"file"``.
        arguments: of the reader: ``shard_id``, ``num_shards``, ``stick_to_shard`` and so on.
    """
    from nvidia.dali import fn, pipeline_def
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    if reader == "caffe":
        arguments["path"] = write_numbered_lmdb(folder, n)
    else:
        arguments |= write_numbered_files(folder, n)

    @pipeline_def(batch_size=batch_size, num_threads=1, device_id=None, prefetch_queue_depth=1)  # type: ignore[untyped-decorator]
    def numbered() -> Any:
        return getattr(fn.readers, reader)(name="reader", **arguments)[1]

    iterator = DALIGenericIterator(
        [numbered()],
        ["label"],
        reader_name="reader",
        auto_reset=True,
        last_batch_policy=LastBatchPolicy[last_batch_policy.upper()],
    )
    batches = [
        [output[0]["label"].flatten().tolist() for output in iterator] for _ in range(epochs)
    ]
    return [[batch for batch in epoch if batch] for epoch in batches]


def _datum(label: int) -> bytes:
    """Return Caffe's Datum: one channel, one row, one column, one byte, and the label."""
    return b"\x08\x01\x10\x01\x18\x01\x22\x01\x00\x28" + _varint(label)


def _varint(number: int) -> bytes:
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + _varint(rest) if rest else bytes([low])
