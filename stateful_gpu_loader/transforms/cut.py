"""Cut: the part of an image that the first recipes keep, and that is decoded."""

from __future__ import annotations

from typing import NamedTuple

from stateful_gpu_loader.decoders.decoder import Box, Size


class Cut(NamedTuple):
    """The part of one image that remains after crops, flips and resizes.

    >>> Cut((0, 0, 375, 500)).flip(1).crop((0, 10, 300, 400)).box
    (0, 90, 300, 400)
    """

    box: Box
    """Top, left, height, width in pixels of the image."""
    mirrored: tuple[bool, bool] = (False, False)
    """Whether flips reversed the rows, and the columns, of the box."""
    resized: Size | None = None
    """Height and width in pixels that the box is resized to; None without a resize."""

    def crop(self, box: Box) -> Cut:
        """Keep a box of the part."""
        top, left, height, width = box
        if self.mirrored[0]:
            top = self.box[2] - top - height
        if self.mirrored[1]:
            left = self.box[3] - left - width
        return Cut((self.box[0] + top, self.box[1] + left, height, width), self.mirrored)

    def flip(self, axis: int) -> Cut:
        """Reverse the rows (axis 0) or columns (axis 1)."""
        rows, columns = self.mirrored
        return Cut(self.box, (not rows, columns) if axis == 0 else (rows, not columns))

    def resize(self, size: Size) -> Cut:
        """Resize the part; later recipes cannot be folded."""
        return Cut(self.box, self.mirrored, size)
