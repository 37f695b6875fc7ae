"""RecordIOShards: MXNet's .rec files of images, read in order from a cursor on."""

from __future__ import annotations

from typing import Any

import torch

from stateful_gpu_loader.datasets.framed.framing import Bytes, Place
from stateful_gpu_loader.datasets.framed.shards import AnyPaths, Counts, FramedShards
from stateful_gpu_loader.datasets.recordio.images import RecordIOImages
from stateful_gpu_loader.datasets.recordio.records import RecordIOFraming
from stateful_gpu_loader.datasets.target_choice import Target


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
        self._images = RecordIOImages(target)
        super().__init__(paths, RecordIOFraming(), counts, num_lanes, shuffle_buffer)

    def _take(self, payload: Bytes, place: Place, number: int) -> tuple[torch.Tensor, Any]:
        return self._images.take(payload, place, number)

    def _choice(self) -> str:
        return repr(self._images)
