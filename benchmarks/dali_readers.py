"""DALI's readers of every format on the CPU, with outputs taken sample by sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.format_writers import CAFFE, CAFFE2, RECORDIO, TAR, TFRECORD
from benchmarks.source_files import SourceFiles

BATCH_SIZE = 64
SHUFFLE_BUFFER = 1024
"""DALI's default of ``initial_fill``."""

_READER = "reader"


def pipeline(
    name: str, files: SourceFiles, *, shuffled: bool = False, checkpoint: str | None = None
) -> Any:
    """Return an unbuilt pipeline of a single reader.

    Args:
        name: name of the format.
        files: files to read.
        shuffled: whether to use DALI's shuffle buffer.
        checkpoint: checkpoint to resume from.
    """
    from nvidia import dali

    readers: Any = dali.fn.readers
    features: Any = dali.tfrecord
    paths = files.paths(name)
    given = {"random_shuffle": True, "initial_fill": SHUFFLE_BUFFER} if shuffled else {}

    def graph() -> tuple[Any, ...]:
        if name == TAR:
            return tuple(readers.webdataset(paths=paths, ext=["jpg", "cls"], name=_READER, **given))
        if name == TFRECORD:
            wanted = {
                "image/encoded": features.FixedLenFeature((), features.string, ""),
                "image/class/label": features.FixedLenFeature([1], features.int64, -1),
            }
            indices = files.index_paths(name)
            found = readers.tfrecord(
                path=paths, index_path=indices, features=wanted, name=_READER, **given
            )
            return tuple(found.values())
        if name == RECORDIO:
            indices = files.index_paths(name)
            return tuple(readers.mxnet(path=paths, index_path=indices, name=_READER, **given))
        read = {CAFFE: readers.caffe, CAFFE2: readers.caffe2}[name]
        return tuple(read(path=paths, name=_READER, **given))

    return dali.pipeline_def(graph)(
        batch_size=BATCH_SIZE,
        num_threads=1,
        device_id=None,
        seed=1,
        enable_checkpointing=True,
        checkpoint=checkpoint,
    )


def read(name: str, files: SourceFiles, *, shuffled: bool) -> Iterator[tuple[Any, int]]:
    """Yield image bytes and label of each sample, epoch after epoch."""
    built = pipeline(name, files, shuffled=shuffled)
    built.build()
    while True:
        images, labels = built.run()
        numbers = _texts(labels) if name == TAR else np.asarray(labels.as_tensor()).ravel().tolist()
        for place, number in enumerate(numbers):
            yield images.at(place), number


def _texts(labels: Any) -> list[int]:
    return [int(labels.at(place).tobytes()) for place in range(len(labels))]
