"""TFRecordShards: TFRecord files of tf.train.Example, read in order from a cursor on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stateful_gpu_loader.datasets.framed.framing import Bytes, Place
from stateful_gpu_loader.datasets.framed.shards import AnyPaths, Counts, FramedShards
from stateful_gpu_loader.datasets.target_choice import Target
from stateful_gpu_loader.datasets.tfrecord.crc32c import require_crc32c
from stateful_gpu_loader.datasets.tfrecord.example_images import ExampleImages
from stateful_gpu_loader.datasets.tfrecord.records import TFRecordFraming


class TFRecordShards(FramedShards):
    """Encoded images and their labels, streamed from TFRecord files without an index.

    Args:
        paths: local or URLs, as ``as_paths`` takes them; .gz, .zst, .bz2 and .xz by their names.
        image: the feature with the encoded image; of several names the first that a record has.
        target: as for TFRecordSource; None is where the record lies: its offset in bytes, or its
            number in a compressed file.
        variable_length: features of the target that are arrays (or lists) even where a record has
            one value.
        check_crc: check both checksums of each record; needs google-crc32c.
        counts: how many samples each shard has, by its name or in order; None is unknown.
        num_lanes, shuffle_buffer: as of :class:`ShardedDataset`.

    Raises:
        ValueError: no path, one twice, or counts that do not fit the shards.
        MissingDependency: google-crc32c is not installed, and ``check_crc`` is left on.

    >>> import os, tempfile
    >>> feature = bytes.fromhex("0a04") + b"jpeg"
    >>> entry = bytes([10, 13]) + b"image/encoded" + bytes([18, 8, 10, 6]) + feature
    >>> example = bytes([10, len(entry) + 2, 10, len(entry)]) + entry
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "train.tfrecord")
    ...     with open(path, "wb") as file:
    ...         _ = file.write(len(example).to_bytes(8, "little") + bytes(4) + example + bytes(4))
    ...     shards = TFRecordShards(path, target=None, check_crc=False)
    ...     [(bytes(data.numpy()), target) for data, target in shards]
    [(b'jpeg', 0)]
    """

    def __init__(
        self,
        paths: AnyPaths,
        *,
        image: str | Sequence[str] = "image/encoded",
        target: Target = "image/class/label",
        variable_length: str | Sequence[str] = (),
        check_crc: bool = True,
        counts: Counts = None,
        num_lanes: int | None = None,
        shuffle_buffer: int = FramedShards.shuffle_buffer,
    ) -> None:
        if check_crc:
            require_crc32c()
        self._images = ExampleImages(image, target, variable_length)
        super().__init__(
            paths, TFRecordFraming(check_crc=check_crc), counts, num_lanes, shuffle_buffer
        )

    def _take(self, payload: Bytes, place: Place, number: int) -> tuple[torch.Tensor, Any]:
        return self._images.take(payload, place, number)

    def _choice(self) -> str:
        return repr(self._images)
