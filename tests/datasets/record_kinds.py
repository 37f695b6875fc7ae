"""TFRecord and RecordIO side by side, for tests of their common behaviour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateful_gpu_loader.datasets.recordio import RecordIOShards, RecordIOSource
from stateful_gpu_loader.datasets.tfrecord import TFRecordShards, TFRecordSource
from tests.datasets.record_files import (
    example,
    image_record,
    recordio_frame,
    tfrecord_frame,
    write_records,
)


@dataclass(frozen=True)
class Kind:
    """One of the two formats."""

    source: Callable[..., Any]
    shards: Callable[..., Any]
    frame: Callable[[bytes, int], bytes]
    """Returns the whole record of an image and its label."""
    index_line: Callable[[int, int, int], str]
    """Returns a line of an index from number, offset and size of a record."""

    def write(
        self, path: Path, images: Sequence[bytes], first: int = 0, index: Path | None = None
    ) -> list[tuple[int, int]]:
        """Write images with labels from ``first`` on; return the offset and size of each record."""
        places = write_records(path, [self.frame(img, first + i) for i, img in enumerate(images)])
        if index is not None:
            lines = (self.index_line(i, *place) for i, place in enumerate(places))
            index.write_text("".join(lines))
        return places


def small_example(image: bytes, label: int) -> bytes:
    return tfrecord_frame(example({"image/encoded": [image], "image/class/label": [label]}))


TFRECORD = Kind(
    TFRecordSource, TFRecordShards, small_example, lambda number, offset, size: f"{offset} {size}\n"
)
RECORDIO = Kind(
    RecordIOSource,
    RecordIOShards,
    lambda image, label: recordio_frame(image_record(image, label)),
    lambda number, offset, size: f"{number}\t{offset}\n",
)
KINDS = {"tfrecord": TFRECORD, "recordio": RECORDIO}


def rest(shards: Any, shard: str, cursor: int = 0) -> list[tuple[bytes, Any, int]]:
    """Return image, target and next cursor of each sample of a shard."""
    found = shards.read_shard(shard, cursor)
    return [(sample.data.numpy().tobytes(), sample.target, after) for sample, after in found]
