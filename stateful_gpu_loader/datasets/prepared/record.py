"""The record of a prepared image: a binary PPM, and the target as JSON behind it."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stateful_gpu_loader.datasets.storage.memory import Bytes, Memory
from stateful_gpu_loader.state import typed_json

HEAD_BYTES = 32
"""Bytes before the pixels."""
_PAGE = 4096
_SMALLEST_MASKS = 4096
"""Bytes of a tensor that is kept as bits, at least."""


@dataclass(frozen=True, slots=True)
class Record:
    """An image and its target, in three parts that follow each other.

    >>> record = Record.of(torch.zeros(3, 2, 4, dtype=torch.uint8), 7)
    >>> record.head, record.num_bytes, record.json
    (b'P6\\n4 2                     \\n255\\n', 63, b'[7, {}]')
    """

    head: bytes
    """A PPM's text, :data:`HEAD_BYTES` long."""
    pixels: Bytes
    """uint8 [height * width * 3], the colours of a pixel side by side."""
    json: bytes
    """The target in typed JSON, masks as bits; empty if it has no form, or a larger one than the
    pixels."""

    @classmethod
    def of(cls, image: torch.Tensor, target: Any) -> Record:
        """The record of an image, whose memory it shares if that is interleaved.

        Args:
            image: uint8 [3, height, width] on the CPU, of any strides.
            target: of the image, as its source gives it.
        """
        try:
            json = typed_json.write(typed_json.encode(_with_bits(target))).encode()
        except TypeError:
            json = b""
        if len(json) > image.numel():
            json = b""
        _, height, width = image.shape
        head = b"P6\n%-24b\n255\n" % (b"%d %d" % (width, height))
        pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy()).reshape(-1)
        return cls(head, pixels, json)

    @classmethod
    def taken_apart(cls, joined: Bytes, json_bytes: int) -> Record:
        """The record in its bytes, of which the last ones are JSON."""
        end = len(joined) - json_bytes
        head, json = joined[:HEAD_BYTES].tobytes(), joined[end:].tobytes()
        return cls(head, joined[HEAD_BYTES:end], json)

    @property
    def num_bytes(self) -> int:
        """Of the three parts."""
        return len(self.head) + len(self.pixels) + len(self.json)

    def ppm(self, memory: Memory) -> Bytes:
        """The image as a file, in ``memory``."""
        file = memory(len(self.head) + len(self.pixels))
        file[:HEAD_BYTES] = np.frombuffer(self.head, dtype=np.uint8)
        file[HEAD_BYTES:] = self.pixels
        return file

    def checksum(self) -> int:
        """A checksum of 32 bits: a CRC of the sums of each 4 KiB of pixels, and of all the rest.

        It takes a tenth of the time of a CRC of everything. It tells a page that is missing, of
        another record or in another place, and any change within 8 bytes.

        >>> white, longer = (torch.zeros(3, n, 1000, dtype=torch.uint8) for n in (2, 3))
        >>> Record.of(white, 7).checksum() == Record.of(longer, 7).checksum()
        False
        """
        pixels = self.pixels
        whole = len(pixels) - len(pixels) % _PAGE
        sums = pixels[:whole].view(np.uint64).reshape(-1, _PAGE // 8).sum(axis=1)
        found = zlib.crc32(sums.astype("<u8").data, zlib.crc32(self.head))
        return zlib.crc32(self.json, zlib.crc32(pixels[whole:].data, found))


def target_in(json: bytes) -> Any:
    """The target of a record, made anew at each call; ``json`` is not empty."""
    target, bits = typed_json.decode(typed_json.parse(json))
    for name, (shape, data) in bits.items():
        packed = np.frombuffer(zlib.decompress(data), dtype=np.uint8)
        masks = np.unpackbits(packed, count=math.prod(shape))
        target[name] = torch.from_numpy(masks).view(shape)
    return target


def _with_bits(target: Any) -> list[Any]:
    """A target, and its masks: name, shape and compressed bits of each.

    Masks are mostly larger than the pixels. As compressed bits they are some kilobytes, and are
    there again in an eighth of the time in which they are drawn from their outlines.
    """
    if type(target) is not dict:
        return [target, {}]
    masks = {name: value.cpu() for name, value in target.items() if _are_masks(value)}
    bits = {
        name: (list(value.shape), zlib.compress(np.packbits(value.numpy()).tobytes(), 1))
        for name, value in masks.items()
    }
    return [{**target, **dict.fromkeys(masks)}, bits]


def _are_masks(value: Any) -> bool:
    return (
        type(value) is torch.Tensor
        and value.dtype is torch.uint8
        and value.layout is torch.strided
        and value.numel() >= _SMALLEST_MASKS
        and int(value.max()) <= 1
    )
