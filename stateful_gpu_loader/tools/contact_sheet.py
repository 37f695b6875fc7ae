"""Draws previewed samples: a contact sheet as PNG, and a page that shows all drawn numbers."""

from __future__ import annotations

import base64
import html
import io
import os
import zlib
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torchvision.transforms.v2 import functional as F
from torchvision.utils import draw_bounding_boxes, draw_segmentation_masks

from stateful_gpu_loader.tools.batch_images import Objects
from stateful_gpu_loader.tools.preview import PreviewedSample, Region, parameters_text

_SIDE = 232
_GAP = 12
_WIDTH = 1560
_LINE = 20
_DOT = 6
_PAPER, _FRAME, _INK, _FAINT = (250, 250, 250), (229, 231, 235), (17, 24, 39), (107, 114, 128)
_OUTLINE = (225, 29, 72)
_COLORS = [(37, 99, 235), (5, 150, 105), (217, 119, 6), (124, 58, 237), (8, 145, 178)]


def write_png(path: str | os.PathLike[str], samples: Sequence[PreviewedSample]) -> None:
    """Write a contact sheet, at most 1,600 pixels wide.

    A cell shows the original, with an outline around what was taken from it, beside the delivered
    image. The dot on the outline marks what became the upper left corner.

    Args:
        path: the PNG file; an existing one is replaced.
        samples: at least one.
    """
    cells = [_cell(sample) for sample in samples]
    width = max(cell.width for cell in cells)
    height = max(cell.height for cell in cells)
    columns = max(1, min(len(cells), (_WIDTH - _GAP) // (width + _GAP)))
    rows = -(-len(cells) // columns)
    sheet_width = max(columns * (width + _GAP) + _GAP, 600)
    legend = _wrapped(_legend(samples), sheet_width - 2 * _GAP)
    top = _GAP + _LINE * len(legend) + _GAP
    sheet = Image.new("RGB", (sheet_width, top + rows * (height + _GAP)), _PAPER)
    pen = ImageDraw.Draw(sheet)
    for i, line in enumerate(legend):
        pen.text((_GAP, _GAP + i * _LINE), line, _FAINT, _font())
    for i, cell in enumerate(cells):
        place = _GAP + i % columns * (width + _GAP), top + i // columns * (height + _GAP)
        sheet.paste(cell, place)
    sheet.save(path, "PNG")


def write_html(path: str | os.PathLike[str], samples: Sequence[PreviewedSample]) -> None:
    """Write a page without other files: each sample, and on hover what each recipe drew for it.

    Args:
        path: the HTML file; an existing one is replaced.
        samples: at least one.
    """
    legend = "".join(f"<p>{html.escape(line)}</p>" for line in _legend(samples))
    figures = "\n".join(map(_figure, samples))
    with open(path, "w", encoding="utf-8") as file:
        file.write(_PAGE.format(legend=legend, figures=figures))


def _figure(sample: PreviewedSample) -> str:
    file = io.BytesIO()
    _pictures(sample).save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    title, label = html.escape(_title(sample)), html.escape(sample.label)
    rows = [(name, parameters_text(numbers) or "-") for name, numbers in sample.parameters]
    if sample.region is not None:
        rows.append(("taken from the original", _taken(sample.region)))
    rows += [("note", note) for note in sample.notes]
    table = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>" for name, text in rows
    )
    return (
        f'<figure tabindex="0"><img alt="{title}" src="data:image/png;base64,{data}">'
        f"<figcaption><b>{label}</b><br>{title}</figcaption><table>{table}</table></figure>"
    )


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Coming batch</title>
<style>
body {{ font: 14px system-ui, sans-serif; margin: 1.5em; background: #fafafa; color: #111827; }}
main {{ display: flex; flex-wrap: wrap; gap: 12px; }}
figure {{ position: relative; margin: 0; background: #fff; padding: 6px; border-radius: 6px;
  box-shadow: 0 1px 2px #0003; max-width: 476px; }}
figure table {{ display: none; position: absolute; left: 0; top: 100%; z-index: 1; width: 440px;
  background: #fff; border: 1px solid #9ca3af; border-radius: 6px; padding: 6px; }}
figure:hover table, figure:focus table {{ display: block; }}
th {{ text-align: left; padding-right: 1em; vertical-align: top; font-weight: 600; }}
figcaption {{ color: #6b7280; overflow-wrap: anywhere; }} figcaption b {{ color: #111827; }}
p {{ color: #6b7280; margin: 0 0 .5em; }}
</style>
{legend}
<main>
{figures}
</main>
</html>
"""


def _cell(sample: PreviewedSample) -> Image.Image:
    pictures = _pictures(sample)
    cell = Image.new("RGB", (pictures.width, pictures.height + 2 * _LINE + 6), _PAPER)
    cell.paste(pictures)
    pen = ImageDraw.Draw(cell)
    y = pictures.height + 4
    pen.text((0, y), _shortened(sample.label, cell.width), _INK, _font())
    pen.text((0, y + _LINE), _shortened(_title(sample), cell.width), _FAINT, _font())
    return cell


def _pictures(sample: PreviewedSample) -> Image.Image:
    """The original, if it is known, beside the delivered image."""
    delivered = _thumbnail(sample.image, sample.objects, None)
    if sample.original is None:
        return delivered
    both = Image.new("RGB", (2 * _SIDE + 4, _SIDE), _PAPER)
    both.paste(_thumbnail(sample.original, sample.original_objects, sample.region))
    both.paste(delivered, (_SIDE + 4, 0))
    return both


def _thumbnail(image: Tensor, objects: Objects | None, region: Region | None) -> Image.Image:
    """An image in a square frame, small enough that an outline around it fits in as well."""
    height, width = image.shape[1:]
    corners = np.array([(0, 0), (width, height), *(region.corners if region else ())])
    lowest, highest = corners.min(axis=0), corners.max(axis=0)
    margin = 0 if region is None else _DOT + 1
    scale = float((_SIDE - 1 - 2 * margin) / (highest - lowest).max())
    shift = (_SIDE - 1 - (highest - lowest) * scale) / 2 - lowest * scale
    size = [max(1, round(height * scale)), max(1, round(width * scale))]
    mode = F.InterpolationMode.NEAREST if scale > 1.5 else F.InterpolationMode.BILINEAR
    small = F.resize_image(image, size, interpolation=mode, antialias=True)
    if objects is not None:
        small = _with_objects(small, objects, scale)
    frame = Image.new("RGB", (_SIDE, _SIDE), _FRAME)
    frame.paste(F.to_pil_image(small), tuple(np.rint(shift).astype(int).tolist()))
    if region is not None:
        points = [(x * scale + shift[0], y * scale + shift[1]) for x, y in region.corners]
        pen = ImageDraw.Draw(frame)
        pen.line([*points, points[0]], (255, 255, 255), 5, "curve")
        pen.line([*points, points[0]], _OUTLINE, 3, "curve")
        x, y = points[0]
        pen.ellipse((x - _DOT, y - _DOT, x + _DOT, y + _DOT), _OUTLINE, (255, 255, 255), 2)
    return frame


def _with_objects(image: Tensor, objects: Objects, scale: float) -> Tensor:
    if objects.masks is not None and len(objects.masks):
        masks = F.resize_mask(objects.masks.to(torch.uint8), list(image.shape[1:])).bool()
        image = draw_segmentation_masks(image, masks, alpha=0.45, colors=_colors(len(masks), ()))
    boxes = objects.boxes * scale
    # torchvision refuses boxes that are not ordered, as damaged annotations may be.
    valid = (boxes[:, 2:] >= boxes[:, :2]).all(dim=1) & boxes.isfinite().all(dim=1)
    if not valid.any():
        return image
    kept = valid.nonzero().flatten().tolist()
    labels = [_shortened(objects.labels[i], 80) for i in kept] if objects.labels else None
    colors = _colors(len(kept), labels or ())
    drawn: Tensor = draw_bounding_boxes(
        image,
        boxes[valid],
        labels,
        colors,
        width=2,
        label_colors="white" if labels else None,
        fill_labels=bool(labels),
    )
    return drawn


def _colors(n: int, labels: Sequence[str]) -> list[tuple[int, int, int]]:
    """A color for each object: that of its label, the same in all images; or one after another."""
    numbers = [zlib.crc32(label.encode()) for label in labels] if labels else range(n)
    return [_COLORS[number % len(_COLORS)] for number in numbers]


def _title(sample: PreviewedSample) -> str:
    parts = ["index unknown" if sample.index is None else f"index {sample.index}"]
    if sample.position is not None:
        parts.append(f"position {sample.position}")
    height, width = sample.image.shape[1:]
    parts.append(f"{width}x{height}")
    if sample.region is not None:
        parts += [f"flipped {direction}ly" for direction in sample.region.flips]
    return ", ".join(parts)


def _taken(region: Region) -> str:
    if region.rectangle is None:
        corners = "; ".join(f"({x:.5g}, {y:.5g})" for x, y in region.corners)
        return f"corners (x, y) {corners}"
    left, top, right, bottom = region.rectangle
    flips = "".join(f", flipped {direction}ly" for direction in region.flips)
    return f"x {left:.6g} to {right:.6g}, y {top:.6g} to {bottom:.6g}{flips}"


def _legend(samples: Sequence[PreviewedSample]) -> list[str]:
    """What is to be said once: how to read the pictures, and the notes of all samples."""
    lines = []
    if any(sample.region is not None for sample in samples):
        lines.append(
            "Left the original, right the delivered image. The outline is what was taken; its dot "
            "became the upper left corner."
        )
    for note in dict.fromkeys(note for sample in samples for note in sample.notes):
        number = sum(note in sample.notes for sample in samples)
        lines.append(note if number == len(samples) else f"{note} ({number} of {len(samples)})")
    return lines


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(14)


def _shortened(text: str, width: int) -> str:
    """Text that fits into so many pixels, with an ellipsis where it was cut."""
    font = _font()
    text = " ".join(text.split())[:200]
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"{text}...") > width:
        text = text[:-1]
    return f"{text}..."


def _wrapped(lines: Sequence[str], width: int) -> list[str]:
    wrapped: list[str] = []
    for line in lines:
        begun = ""
        for word in line.split():
            longer = f"{begun} {word}".strip()
            if begun and _font().getlength(longer) > width:
                wrapped.append(begun)
                longer = word
            begun = longer
        wrapped.append(_shortened(begun, width))
    return wrapped
