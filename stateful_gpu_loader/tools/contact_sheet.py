"""Draws previewed samples as one PNG file: a contact sheet."""

from __future__ import annotations

import os
from collections.abc import Sequence

from PIL import Image, ImageDraw

from stateful_gpu_loader.tools.previewed import PreviewedSample, legend
from stateful_gpu_loader.tools.sample_picture import font, picture_of, shortened

_GAP = 12
_WIDTH = 1560
_LINE = 20
_PAPER, _FRAME, _INK, _FAINT = (250, 250, 250), (229, 231, 235), (17, 24, 39), (107, 114, 128)

Box = tuple[int, int, int, int]


def write_png(path: str | os.PathLike[str], samples: Sequence[PreviewedSample]) -> list[Box]:
    """Write a contact sheet, at most 1,600 pixels wide.

    A cell shows the original, with an outline around what was taken from it, beside the delivered
    image. The dot on the outline marks what became the upper left corner.

    Args:
        path: the PNG file; an existing one is replaced.
        samples: at least one.

    Returns:
        Left, top, right and bottom of each sample's pictures in the sheet, in pixels.
    """
    pictures = [picture_of(sample) for sample in samples]
    width = max(picture.width for picture in pictures)
    height = max(picture.height for picture in pictures) + 2 * _LINE + 6
    columns = max(1, min(len(pictures), (_WIDTH - _GAP) // (width + _GAP)))
    rows = -(-len(pictures) // columns)
    sheet_width = max(columns * (width + _GAP) + _GAP, 600)
    lines = _wrapped(legend(samples), sheet_width - 2 * _GAP)
    first = _GAP + _LINE * len(lines) + _GAP
    sheet = Image.new("RGB", (sheet_width, first + rows * (height + _GAP)), _PAPER)
    pen = ImageDraw.Draw(sheet)
    for i, line in enumerate(lines):
        pen.text((_GAP, _GAP + i * _LINE), line, _FAINT, font())
    boxes = []
    for i, (sample, picture) in enumerate(zip(samples, pictures, strict=True)):
        left, top = _GAP + i % columns * (width + _GAP), first + i // columns * (height + _GAP)
        box = left, top, left + picture.width, top + picture.height
        sheet.paste(_FRAME, box)
        sheet.paste(picture, box, picture)
        pen.text((left, box[3] + 4), shortened(sample.label, width), _INK, font())
        pen.text((left, box[3] + 4 + _LINE), shortened(sample.title, width), _FAINT, font())
        boxes.append(box)
    sheet.save(path, "PNG")
    return boxes


def _wrapped(lines: Sequence[str], width: int) -> list[str]:
    wrapped: list[str] = []
    for line in lines:
        begun = ""
        for word in line.split():
            longer = f"{begun} {word}".strip()
            if begun and font().getlength(longer) > width:
                wrapped.append(begun)
                longer = word
            begun = longer
        wrapped.append(shortened(begun, width))
    return wrapped
