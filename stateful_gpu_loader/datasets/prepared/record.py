"""The record of a prepared image: a binary PPM, whose comment tells the rest, and the target."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stateful_gpu_loader.datasets.source import Size
from stateful_gpu_loader.datasets.storage.memory import Bytes
from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.state import typed_json

_TEXT = b"P6\n# of %d x %d, target %d\n%d %d\n255\n"
_COMMENT = re.compile(rb"P6\n# of (\d+) x (\d+), target (\d+)\n")
_LONGEST_COMMENT = 96


def record_of(image: torch.Tensor, original: Size, target: Any) -> Bytes:
    """The record of an image, uint8 [num_bytes].

    The target is left out if it has no form in typed JSON, or takes more room than the pixels.

    Args:
        image: uint8 [3, height, width] on the CPU, of any strides.
        original: height and width in pixels of the image that it was made from.
        target: of the image, as its source gives it.

    >>> record = record_of(torch.zeros(3, 2, 4, dtype=torch.uint8), (20, 40), 7)
    >>> bytes(record[:-25]), bytes(record[-1:])
    (b'P6\\n# of 20 x 40, target 1\\n4 2\\n255\\n', b'7')
    """
    _, height, width = image.shape
    num_bytes = 3 * height * width
    try:
        json = typed_json.write(typed_json.encode(target)).encode()
    except TypeError:
        json = b""
    if len(json) > num_bytes:
        json = b""
    text = _TEXT % (*original, len(json), width, height)
    record = np.empty(len(text) + num_bytes + len(json), dtype=np.uint8)
    end = len(text) + num_bytes
    record[: len(text)] = np.frombuffer(text, dtype=np.uint8)
    record[len(text) : end].reshape(height, width, 3)[:] = image.permute(1, 2, 0).numpy()
    record[end:] = np.frombuffer(json, dtype=np.uint8)
    return record


@dataclass(frozen=True)
class PreparedImage:
    """What a record holds."""

    data: Bytes
    """The PPM, uint8 [num_bytes]."""
    original: Size
    """Height and width in pixels of the image that it was made from."""
    json: bytes
    """The target; empty if it was left out."""

    @classmethod
    def of(cls, record: Bytes) -> PreparedImage:
        """Take a record apart whose checksum is right.

        Raises:
            LoaderError: it has another form than :func:`record_of` gives.
        """
        found = _COMMENT.match(record[:_LONGEST_COMMENT].tobytes())
        if found is None:
            raise LoaderError(
                f"a prepared image begins with {record[:16].tobytes()!r}, as no image that is "
                "prepared does. Remedy: prepare the images anew, in another directory"
            )
        height, width, num_bytes = map(int, found.groups())
        end = len(record) - num_bytes
        return cls(record[:end], (height, width), record[end:].tobytes())

    def target(self) -> Any:
        """The target, made anew at each call; :attr:`json` is not empty."""
        return typed_json.decode(typed_json.parse(self.json))
