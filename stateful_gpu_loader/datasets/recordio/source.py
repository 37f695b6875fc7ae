"""RecordIOSource: MXNet's .rec files of images, by index."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from stateful_gpu_loader.datasets.framed.framing import Offsets
from stateful_gpu_loader.datasets.framed.source import AnyPaths, FramedSource, one_index_each
from stateful_gpu_loader.datasets.recordio.images import RecordIOImages, record_of
from stateful_gpu_loader.datasets.recordio.records import RecordIOFraming, parse_index
from stateful_gpu_loader.datasets.storage.paths import AnyPath, as_paths
from stateful_gpu_loader.datasets.storage.streams import open_stream
from stateful_gpu_loader.datasets.target_choice import Target
from stateful_gpu_loader.records import EncodedSample


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
        self._images = RecordIOImages(target)
        files = as_paths(paths)
        indices = None if index_paths is None else as_paths(index_paths)
        if indices is not None and len(indices) > 1:
            indices = one_index_each(indices, files)
        super().__init__(
            files,
            RecordIOFraming(),
            given=None if indices is None else partial(_read_indices, indices, files),
            cache_dir=cache_dir,
            stream_class="RecordIOShards",
        )

    def read(self, index: int) -> EncodedSample:
        """The encoded image and the target.

        Raises:
            OSError: of the kind that the system reports; it names the path and the index.
            ValueError: the record is damaged, or its label is no class and one is asked for.
        """
        payload, place = self._payload(index)
        data, target = self._images.take(payload, place, index)
        return EncodedSample(data, target, f"{place.path}, record {place.record}")

    def record(self, index: int) -> dict[str, Any]:
        """``label``, ``id``, ``id2`` and ``image`` (bytes) at ``0 <= index < len(self)``."""
        return record_of(*self._payload(index))

    def _choice(self) -> str:
        return repr(self._images)


def _read_indices(indices: list[str], paths: list[str], sizes: list[int]) -> list[Offsets]:
    found = []
    for path in indices:
        with open_stream(path) as stream:
            found.append(parse_index(stream.read(), path))
    if len(found) < len(paths):
        found = _divided(found[0], sizes, indices[0])
    return [
        _with_end(offsets, size, path)
        for offsets, size, path in zip(found, sizes, indices * len(paths), strict=False)
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
