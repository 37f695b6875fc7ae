"""EXIF orientation: how stored pixels are rotated and mirrored for display."""

from __future__ import annotations

from struct import unpack_from

from stateful_gpu_loader.decoders.decoder import Box, Image, Size, StridedImage

ORIENTATION_TAG = 0x0112
SHORT, LONG = 3, 4

MIRRORED_AXES = {2: (1,), 3: (0, 1), 4: (0,), 5: (), 6: (1,), 7: (0, 1), 8: (0,)}
"""Axes of [height, width] to mirror; for 5 to 8, after height and width are swapped."""


def read_orientation(tiff: memoryview | bytes) -> int:
    """Return the orientation, 1 to 8, from a block of EXIF data; 1 if there is none.

    Args:
        tiff: EXIF data, starting at the byte-order mark (TIFF 6.0, section 2); any bytes.

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


def turned(image: Image, orientation: int) -> Image:
    """Return an image rotated and mirrored for display (EXIF 2.32, 4.6.4.A), without a copy.

    Args:
        image: uint8 [channels, height, width].
        orientation: 1 to 8; from 5 on, height and width are swapped.

    Returns:
        ``image`` itself for 1, otherwise another view of its memory.

    >>> import torch
    >>> turned(torch.tensor([[[1, 2, 3]]], dtype=torch.uint8), 6).tensor()
    tensor([[[1],
             [2],
             [3]]], dtype=torch.uint8)
    """
    if orientation == 1:
        return image
    stored = StridedImage.of(image)
    (channels, height, width), (channel, row, column) = stored.shape, stored.strides
    start = stored.start
    if orientation >= 5:
        height, width, row, column = width, height, column, row
    mirrored = MIRRORED_AXES[orientation]
    if 0 in mirrored:
        start, row = start + (height - 1) * row, -row
    if 1 in mirrored:
        start, column = start + (width - 1) * column, -column
    return StridedImage(stored.memory, (channels, height, width), (channel, row, column), start)


def stored_box(box: Box, size: Size, orientation: int) -> Box:
    """Return the position of a box of the displayed image in the stored image.

    Args:
        box: top, left, height and width in pixels, after :func:`turned`.
        size: height and width of the whole image in pixels, after :func:`turned`.
        orientation: 1 to 8.

    >>> stored_box((0, 0, 10, 20), (100, 50), orientation=6)
    (30, 0, 20, 10)
    """
    top, left, height, width = box
    mirrored = MIRRORED_AXES.get(orientation, ())
    if 0 in mirrored:
        top = size[0] - top - height
    if 1 in mirrored:
        left = size[1] - left - width
    return (left, top, width, height) if orientation >= 5 else (top, left, height, width)
