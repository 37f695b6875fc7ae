"""RecordIOSource and RecordIOShards: MXNet's .rec files of images, by index or as streams."""

from __future__ import annotations

from functools import partial

import numpy as np

from stateful_gpu_loader.datasets.file_shards import Counts
from stateful_gpu_loader.datasets.framed.framing import Offsets
from stateful_gpu_loader.datasets.framed.shards import FramedShards
from stateful_gpu_loader.datasets.framed.source import AnyPaths, FramedSource, read_indices
from stateful_gpu_loader.datasets.recordio.images import RecordIOImages
from stateful_gpu_loader.datasets.recordio.records import RecordIOFraming, parse_index
from stateful_gpu_loader.datasets.storage.paths import AnyPath, as_paths
from stateful_gpu_loader.datasets.target_choice import Target


class RecordIOSource(FramedSource):
    """Encoded images and their labels in RecordIO files, local or by URL, in the files' order.

    That is the order of DALI's reader, whatever the order of the .idx file. The format has no
    checksums: damage inside an image is for the decoder to find.

    Args:
        paths: one file or several, as ``as_paths`` takes them.
        target: what the target is, several for a tuple, a dict of new names for a dict, None for
            the index. ``"class"`` is the label as an int, and an error where it is not integral;
            ``"label"`` is what is stored: a float32, or float32 [n] of a record with n labels;
            ``"id"`` and ``"id2"`` are the ints beside it.
        index_paths: an .idx for each file, as ``im2rec`` and ``rec2idx`` write them; or one for all
            files, whose offsets count on from file to file, as DALI reads it. None builds an index
            once, by reading each record's header, and keeps it.
        cache_dir: where built indices are kept; None is beside the files.

    Raises:
        OSError: a file is not there or cannot be read.
        ValueError: a file is damaged, compressed or unlike its index, or no file has a record.

    >>> import os, struct, tempfile
    >>> payload = struct.pack("<IfQQ", 0, 7.0, 0, 0) + b"jpeg"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "train.rec")
    ...     with open(path, "wb") as file:
    ...         _ = file.write(struct.pack("<II", 0xCED7230A, len(payload)) + payload)
    ...     source = RecordIOSource(path)
    ...     data, target = source[0]
    ...     len(source), bytes(data.numpy()), target, source.record(0)["id"]
    (1, b'jpeg', 7, 0)
    """

    def __init__(
        self,
        paths: AnyPaths,
        *,
        target: Target = "class",
        index_paths: AnyPaths | None = None,
        cache_dir: AnyPath | None = None,
    ) -> None:
        indices = None if index_paths is None else as_paths(index_paths)
        super().__init__(
            paths,
            RecordIOFraming(),
            RecordIOImages(target),
            given=None if indices is None else partial(_offsets, indices),
            cache_dir=cache_dir,
            stream_class="RecordIOShards",
        )


class RecordIOShards(FramedShards):
    """Encoded images and their labels, streamed from RecordIO files without an index.

    Args:
        paths: local or URLs, as ``as_paths`` takes them; .gz, .zst, .bz2 and .xz by their names.
        target: as for RecordIOSource; None is where the record lies: its offset in bytes, or its
            number in a compressed file.
        counts: how many samples each shard has, by its name or in order; None is unknown.
        num_lanes, shuffle_buffer: as of :class:`ShardedDataset`.

    Raises:
        ValueError: no path, one twice, or counts that do not fit the shards.

    >>> import os, struct, tempfile
    >>> payload = struct.pack("<IfQQ", 0, 7.0, 0, 0) + b"jpeg"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "train.rec")
    ...     with open(path, "wb") as file:
    ...         _ = file.write(struct.pack("<II", 0xCED7230A, len(payload)) + payload)
    ...     [(bytes(data.numpy()), target) for data, target in RecordIOShards(path)]
    [(b'jpeg', 7)]
    """

    def __init__(
        self,
        paths: AnyPaths,
        *,
        target: Target = "class",
        counts: Counts = None,
        num_lanes: int | None = None,
        shuffle_buffer: int = FramedShards.shuffle_buffer,
    ) -> None:
        super().__init__(
            paths,
            RecordIOFraming(),
            RecordIOImages(target),
            counts=counts,
            num_lanes=num_lanes,
            shuffle_buffer=shuffle_buffer,
        )


def _offsets(index_paths: list[str], paths: list[str], sizes: list[int]) -> list[Offsets]:
    if len(index_paths) == 1 < len(paths):
        (offsets,) = read_indices(index_paths, index_paths, parse_index)
        found = _divided(offsets, sizes, index_paths[0])
    else:
        found = read_indices(index_paths, paths, parse_index)
    return [
        _with_end(offsets, size, path)
        for offsets, size, path in zip(found, sizes, index_paths * len(paths), strict=False)
    ]


def _divided(offsets: Offsets, sizes: list[int], path: str) -> list[Offsets]:
    """The offsets inside each file, of offsets that count on from file to file."""
    ends = np.cumsum(sizes)
    if len(offsets) and offsets[-1] >= ends[-1]:
        raise ValueError(
            f"{path!r}: a record begins at byte {offsets[-1]}, and the {len(sizes)} files have "
            f"{ends[-1]} bytes together. Remedy: give an index for each file, or one for all"
        )
    starts = ends - sizes
    return [
        offsets[(offsets >= start) & (offsets < end)] - start
        for start, end in zip(starts, ends, strict=True)
    ]


def _with_end(offsets: Offsets, size: int, path: str) -> Offsets:
    """int64 [n + 1]: where records begin and the last one ends."""
    if not len(offsets) and not size:
        return np.zeros(1, dtype=np.int64)
    if not len(offsets) or offsets[0] != 0 or offsets[-1] >= size:
        there = f"at byte {offsets[0]} to {offsets[-1]}" if len(offsets) else "nowhere"
        raise ValueError(
            f"{path!r}: its records begin {there}, and those of a file of {size} bytes begin at "
            "byte 0 and before its end. Remedy: make the index anew with rec2idx, or leave "
            "index_paths out"
        )
    return np.append(offsets, size)
