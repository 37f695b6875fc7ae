"""EXIF orientation: how the stored pixels are turned and mirrored for display."""

from __future__ import annotations

from struct import unpack_from

import torch

ORIENTATION_TAG = 0x0112
SHORT, LONG = 3, 4

MIRRORED_AXES = {2: (2,), 3: (1, 2), 4: (1,), 5: (), 6: (2,), 7: (1, 2), 8: (1,)}
"""Axes of [channels, height, width] to flip, for 5 to 8 after height and width are swapped."""


def read_orientation(tiff: memoryview | bytes) -> int:
    """The orientation, 1 to 8, that a block of EXIF data names; 1 where it names none.

    Args:
        tiff: the EXIF data from its byte-order mark on (TIFF 6.0, section 2); any bytes.

    >>> read_orientation(bytes.fromhex("4d4d002a00000008 0001 0112000300000001 00060000"))
    6
    >>> read_orientation(b"not EXIF")
    1
    """
    if tiff[:4] == b"II*\0":
        order = "<"
    elif tiff[:4] == b"MM\0*":
        order = ">"
    else:
        return 1
    size = len(tiff)
    if size < 8:
        return 1
    (directory,) = unpack_from(order + "I", tiff, 4)
    if directory + 2 > size:
        return 1
    (num_entries,) = unpack_from(order + "H", tiff, directory)
    first = directory + 2
    last = first + 12 * min(num_entries, (size - first) // 12)
    for entry in range(first, last, 12):
        tag, kind, count = unpack_from(order + "HHI", tiff, entry)
        if tag == ORIENTATION_TAG:
            if count != 1 or kind not in (SHORT, LONG):
                return 1
            (value,) = unpack_from(order + ("H" if kind == SHORT else "I"), tiff, entry + 8)
            return value if 1 <= value <= 8 else 1
    return 1


def apply_orientation(image: torch.Tensor, orientation: int) -> torch.Tensor:
    """``image`` turned and mirrored for display (EXIF 2.32, section 4.6.4.A).

    Args:
        image: [channels, height, width], any dtype.
        orientation: 1 to 8; from 5 on height and width change places.

    Returns:
        ``image`` itself for 1, otherwise a copy whose memory keeps the order of ``image``'s: a
        whole image is not transposed in memory where a crop of it will do.

    >>> apply_orientation(torch.tensor([[[1, 2, 3]]]), 6)
    tensor([[[1],
             [2],
             [3]]])
    """
    if orientation == 1:
        return image
    upright = image if orientation < 5 else image.transpose(1, 2)
    return upright.flip(MIRRORED_AXES[orientation])
