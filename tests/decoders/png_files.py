"""Writes PNGs that Pillow cannot write: 16 bits of colour, interlaced, with chosen chunks."""

from __future__ import annotations

import zlib
from struct import pack

import numpy as np
import numpy.typing as npt
import torch

ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2))
COLOR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}


def chunk(kind: bytes, payload: bytes) -> bytes:
    return pack(">I", len(payload)) + kind + payload + pack(">I", zlib.crc32(kind + payload))


def header(height: int, width: int, *numbers: int) -> bytes:
    """Return IHDR from bit depth, colour type, compression, filter and interlacing."""
    return chunk(b"IHDR", pack(">II5B", width, height, *numbers))


def write_png(
    values: npt.NDArray[np.uint16],
    bit_depth: int,
    *,
    interlaced: bool = False,
    row_filter: int = 0,
    chunks: bytes = b"",
) -> torch.Tensor:
    """Return a PNG of ``values`` [height, width, channels], as uint8 [num_bytes]."""
    height, width, channels = values.shape
    passes = [(0, 0, 1, 1)] if not interlaced else [*ADAM7, (1, 0, 2, 1)]
    rows = b""
    for top, left, row_step, column_step in passes:
        for row in values[top::row_step, left::column_step]:
            if row.size:
                rows += bytes([row_filter]) + _pack_row(row, bit_depth)
    numbers = (bit_depth, COLOR_TYPES[channels], 0, 0, int(interlaced))
    return as_tensor(
        b"\x89PNG\r\n\x1a\n",
        header(height, width, *numbers),
        chunks,
        chunk(b"IDAT", zlib.compress(rows)),
        chunk(b"IEND", b""),
    )


def as_tensor(*parts: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8)


def _pack_row(row: npt.NDArray[np.uint16], bit_depth: int) -> bytes:
    if bit_depth == 16:
        return row.astype(">u2").tobytes()
    bits = np.unpackbits(row.astype(np.uint8).reshape(-1, 1), axis=1)[:, -bit_depth:]
    return np.packbits(bits.reshape(-1)).tobytes()
