"""Draws previewed samples: a contact sheet as PNG file, and an HTML page."""

from __future__ import annotations

import base64
import html
import io
import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torchvision.transforms.v2 import functional as F
from torchvision.utils import draw_segmentation_masks

from stateful_gpu_loader.tools.batch_images import Objects
from stateful_gpu_loader.tools.preview import PreviewedSample, Region, legend

_GAP = 12
_WIDTH = 1560
_LINE = 20
_PAPER, _FRAME, _INK, _FAINT = (250, 250, 250), (229, 231, 235), (17, 24, 39), (107, 114, 128)

Box = tuple[int, int, int, int]


def write_png(path: str | os.PathLike[str], samples: Sequence[PreviewedSample]) -> list[Box]:
    """Write a contact sheet, at most 1,600 pixels wide.

    A cell shows the original beside the delivered image. An outline marks the part that was taken,
    and the dot on it the later upper left corner.

    Args:
        path: the PNG file; an existing file is replaced.
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


def write_html(path: str | os.PathLike[str], samples: Sequence[PreviewedSample]) -> None:
    """Write a self-contained page with all samples; on hover it shows the numbers of the recipes.

    Args:
        path: the HTML file; an existing file is replaced.
        samples: at least one.
    """
    with open(path, "w", encoding="utf-8") as file:
        file.write(html_page(samples))


def html_page(samples: Sequence[PreviewedSample]) -> str:
    """Return the page that :func:`write_html` writes."""
    lines = "".join(f"<p>{html.escape(line)}</p>" for line in legend(samples))
    figures = "\n".join(map(_figure, samples))
    return _PAGE.format(number=len(samples), legend=lines, figures=figures)


def _figure(sample: PreviewedSample) -> str:
    file, picture = io.BytesIO(), picture_of(sample)
    picture.save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    title, label = html.escape(sample.title), html.escape(sample.label)
    rows = [(name, parameters_text(numbers) or "-") for name, numbers in sample.parameters]
    if sample.region is not None:
        rows.append(("part taken", _taken(sample.region)))
    if sample.place.stored is not None:
        rows.append(("stored in", sample.place.stored))
    rows += [("note", note) for note in sample.notes]
    table = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(text)}</td></tr>'
        for name, text in rows
    )
    return (
        f'<figure tabindex="0"><img alt="{title}" width="{picture.width}" '
        f'height="{picture.height}" src="data:image/png;base64,{data}">'
        f"<figcaption><b>{label}</b><br>{title}</figcaption><table>{table}</table></figure>"
    )


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Coming batch</title>
<style>
:root {{ color-scheme: light dark; --paper: #fafafa; --card: #fff; --frame: #e5e7eb;
  --ink: #111827; --faint: #4b5563; --line: #9ca3af; }}
@media (prefers-color-scheme: dark) {{ :root {{ --paper: #111827; --card: #1f2937;
  --frame: #374151; --ink: #f3f4f6; --faint: #b6bcc6; --line: #6b7280; }} }}
* {{ box-sizing: border-box; }}
body {{ font: 15px/1.4 system-ui, sans-serif; margin: clamp(8px, 2vw, 24px);
  background: var(--paper); color: var(--ink); }}
h1 {{ font-size: 1.25em; margin: 0 0 .4em; }}
p {{ color: var(--faint); margin: 0 0 .4em; max-width: 50em; }}
main {{ display: flex; flex-wrap: wrap; gap: 12px; margin-top: 1em; padding-bottom: 14em; }}
figure {{ position: relative; margin: 0; padding: 6px; border-radius: 6px; max-width: 100%;
  background: var(--card); box-shadow: 0 1px 2px #0004; }}
figure:hover, figure:focus-within, figure:focus {{ outline: 2px solid var(--line); z-index: 1; }}
img {{ display: block; max-width: 100%; height: auto; background: var(--frame); }}
figcaption {{ width: 0; min-width: 100%; padding-top: 4px; color: var(--faint);
  overflow-wrap: anywhere; }}
figcaption b {{ color: var(--ink); }}
table {{ display: none; position: absolute; left: 0; top: calc(100% - 2px); width: 100%;
  padding: 6px; border-radius: 0 0 6px 6px; background: var(--card);
  box-shadow: 0 4px 12px #0006; outline: 2px solid var(--line); font-size: 14px; }}
figure:hover table, figure:focus table {{ display: table; }}
th {{ text-align: left; padding-right: 1em; vertical-align: top; font-weight: 600; }}
td {{ overflow-wrap: anywhere; }}
</style></head>
<body>
<h1>Coming batch: {number} samples</h1>
{legend}
<p>Point at a sample, or tap it, to see the numbers drawn for it.</p>
<main>
{figures}
</main>
</body></html>
"""


def parameters_text(parameters: Mapping[str, Any]) -> str:
    """Return the numbers of one recipe as text.

    >>> parameters_text({"top": 3, "angle": 1.23456})
    'top 3, angle 1.235'
    """
    return ", ".join(f"{name} {_number(value)}" for name, value in parameters.items())


def _number(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_number, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _taken(region: Region) -> str:
    if region.rectangle is None:
        corners = "; ".join(f"({x:.5g}, {y:.5g})" for x, y in region.corners)
        return f"corners (x, y) {corners}"
    left, top, right, bottom = region.rectangle
    flips = "".join(f", flipped {direction}ly" for direction in region.flips)
    return f"x {left:.6g} to {right:.6g}, y {top:.6g} to {bottom:.6g}{flips}"


_SIDE = 232
_BETWEEN = 4
_DOT = 6
_SMALL = 11
_WHITE, _OUTLINE = (255, 255, 255), (225, 29, 72)
Color = tuple[int, int, int]
_COLORS: list[Color] = [
    *[(37, 99, 235), (4, 120, 87), (194, 65, 12), (124, 58, 237)],
    *[(14, 116, 144), (161, 98, 7), (190, 24, 93), (71, 85, 105)],
]
"""Colors of boxes and masks; white letters can be read on each."""


def picture_of(sample: PreviewedSample) -> Image.Image:
    """Draw the original, if it is known, beside the delivered image, in RGBA.

    Outline and dot are as in :func:`write_png`. The area around the images is transparent.
    """
    delivered = _thumbnail(sample.image, sample.objects, None)
    if sample.original is None:
        return delivered
    both = Image.new("RGBA", (2 * _SIDE + _BETWEEN, _SIDE))
    both.paste(_thumbnail(sample.original, sample.original_objects, sample.region))
    both.paste(delivered, (_SIDE + _BETWEEN, 0))
    return both


def _thumbnail(image: Tensor, objects: Objects | None, region: Region | None) -> Image.Image:
    """Draw an image into a square frame, with room for the outline."""
    height, width = image.shape[1:]
    corners = np.array([(0, 0), (width, height), *(region.corners if region else ())])
    lowest, highest = corners.min(axis=0), corners.max(axis=0)
    margin = 0 if region is None else _DOT + 1
    scale = float((_SIDE - 1 - 2 * margin) / (highest - lowest).max())
    shift = (_SIDE - 1 - (highest - lowest) * scale) / 2 - lowest * scale
    size = [max(1, round(height * scale)), max(1, round(width * scale))]
    mode = F.InterpolationMode.NEAREST if scale > 1.5 else F.InterpolationMode.BILINEAR
    small = F.resize_image(image, size, interpolation=mode, antialias=True)
    if objects is not None and objects.masks is not None and len(objects.masks):
        masks = F.resize_mask(objects.masks.to(torch.uint8), size).bool()
        small = draw_segmentation_masks(small, masks, alpha=0.45, colors=_colors(len(masks), ()))
    frame = Image.new("RGBA", (_SIDE, _SIDE))
    frame.paste(F.to_pil_image(small), tuple(np.rint(shift).astype(int).tolist()))
    pen = ImageDraw.Draw(frame)
    boxes = [] if objects is None else _draw_boxes(pen, objects, scale, shift)
    if region is not None:
        points = [(x * scale + shift[0], y * scale + shift[1]) for x, y in region.corners]
        pen.line([*points, points[0]], _WHITE, 5, "curve")
        pen.line([*points, points[0]], _OUTLINE, 3, "curve")
        x, y = points[0]
        pen.ellipse((x - _DOT, y - _DOT, x + _DOT, y + _DOT), _OUTLINE, _WHITE, 2)
    for left, top, label, color in boxes:
        _write_label(pen, left, top, label, color)
    return frame


def _draw_boxes(
    pen: ImageDraw.ImageDraw, objects: Objects, scale: float, shift: np.ndarray
) -> list[tuple[float, float, str, Color]]:
    """Outline each box, and return the labels and places, to be drawn last."""
    drawn = []
    places = objects.boxes.numpy() * scale + np.tile(shift, 2)
    labels = objects.labels or ("",) * len(places)
    colors = _colors(len(places), objects.labels)
    for place, label, color in zip(places, labels, colors, strict=True):
        left, top, right, bottom = place.tolist()
        # Pillow refuses boxes with swapped corners, which damaged annotations may have.
        if np.isfinite(place).all() and left <= right and top <= bottom:
            pen.rectangle((left, top, right, bottom), outline=color, width=2)
            drawn.append((left, top, label, color))
    return drawn


def _write_label(
    pen: ImageDraw.ImageDraw, left: float, top: float, label: str, color: Color
) -> None:
    """Write a label above a box, or inside it without room above."""
    if not label:
        return
    text = shortened(label, 90, _SMALL)
    width, height = pen.textlength(text, font(_SMALL)) + 6, _SMALL + 4
    x = min(max(left, 0.0), _SIDE - width)
    y = top - height if top >= height else max(top, 0.0)
    pen.rectangle((x, y, x + width, y + height), color)
    pen.text((x + 3, y + 1), text, _WHITE, font(_SMALL))


def _colors(n: int, labels: Sequence[str]) -> list[Color]:
    """Return a color for each object, by label or in turns."""
    numbers = [zlib.crc32(label.encode()) for label in labels] if labels else range(n)
    return [_COLORS[number % len(_COLORS)] for number in numbers]


def font(size: int = 14) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return Pillow's own font, which needs no system file."""
    return ImageFont.load_default(size)


def shortened(text: str, width: int, size: int = 14) -> str:
    """Return a text cut to ``width`` pixels, with an ellipsis."""
    of_size = font(size)
    text = " ".join(text.split())[:200]
    if of_size.getlength(text) <= width:
        return text
    while text and of_size.getlength(f"{text}...") > width:
        text = text[:-1]
    return f"{text}..."
