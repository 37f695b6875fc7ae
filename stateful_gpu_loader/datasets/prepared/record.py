"""The record of a prepared image: a binary PPM whose comment tells the size it was made from."""

from __future__ import annotations

import re

import numpy as np
import torch

from stateful_gpu_loader.datasets.source import Size
from stateful_gpu_loader.datasets.storage.memory import Bytes

_TEXT = b"P6\n# of %d x %d\n%d %d\n255\n"
_COMMENT = re.compile(rb"P6\n# of (\d+) x (\d+)\n")
_LONGEST_COMMENT = 64


def record_of(image: torch.Tensor, original: Size) -> Bytes:
    """The record of an image, uint8 [num_bytes].

    Args:
        image: uint8 [3, height, width] on the CPU, of any strides.
        original: height and width in pixels of the image that it was made from.

    >>> record = record_of(torch.zeros(3, 2, 4, dtype=torch.uint8), (20, 40))
    >>> bytes(record[:-24]), original_size(record)
    (b'P6\\n# of 20 x 40\\n4 2\\n255\\n', (20, 40))
    """
    _, height, width = image.shape
    text = np.frombuffer(_TEXT % (*original, width, height), dtype=np.uint8)
    record = np.empty(len(text) + 3 * height * width, dtype=np.uint8)
    record[: len(text)] = text
    record[len(text) :].reshape(height, width, 3)[:] = image.permute(1, 2, 0).numpy()
    return record


def original_size(record: Bytes) -> Size:
    """Height and width in pixels of the image that a record was made from."""
    found = _COMMENT.match(record[:_LONGEST_COMMENT].tobytes())
    assert found is not None, "records are checked before"
    height, width = map(int, found.groups())
    return height, width
