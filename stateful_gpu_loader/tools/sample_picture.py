"""Draws one previewed sample: the original, with what was taken from it, beside the delivered."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torchvision.transforms.v2 import functional as F
from torchvision.utils import draw_segmentation_masks

from stateful_gpu_loader.tools.batch_images import Objects
from stateful_gpu_loader.tools.previewed import PreviewedSample, Region

_SIDE = 232
_GAP = 4
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

    An outline surrounds what was taken of the original; the dot on it marks what became the upper
    left corner. What is around the images is transparent.
    """
    delivered = _thumbnail(sample.image, sample.objects, None)
    if sample.original is None:
        return delivered
    both = Image.new("RGBA", (2 * _SIDE + _GAP, _SIDE))
    both.paste(_thumbnail(sample.original, sample.original_objects, sample.region))
    both.paste(delivered, (_SIDE + _GAP, 0))
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
    """Outline each box; return where its label belongs, which nothing may be drawn over."""
    drawn = []
    places = objects.boxes.numpy() * scale + np.tile(shift, 2)
    labels = objects.labels or ("",) * len(places)
    colors = _colors(len(places), objects.labels)
    for place, label, color in zip(places, labels, colors, strict=True):
        left, top, right, bottom = place.tolist()
        # Damaged annotations may have no order of corners, which Pillow refuses.
        if np.isfinite(place).all() and left <= right and top <= bottom:
            pen.rectangle((left, top, right, bottom), outline=color, width=2)
            drawn.append((left, top, label, color))
    return drawn


def _write_label(
    pen: ImageDraw.ImageDraw, left: float, top: float, label: str, color: Color
) -> None:
    """Write a label above a box, or inside where there is no room above."""
    if not label:
        return
    text = shortened(label, 90, _SMALL)
    width, height = pen.textlength(text, font(_SMALL)) + 6, _SMALL + 4
    x = min(max(left, 0.0), _SIDE - width)
    y = top - height if top >= height else max(top, 0.0)
    pen.rectangle((x, y, x + width, y + height), color)
    pen.text((x + 3, y + 1), text, _WHITE, font(_SMALL))


def _colors(n: int, labels: Sequence[str]) -> list[Color]:
    """A color for each object: that of its label, the same in all images; or one after another."""
    numbers = [zlib.crc32(label.encode()) for label in labels] if labels else range(n)
    return [_COLORS[number % len(_COLORS)] for number in numbers]


def font(size: int = 14) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return Pillow's own font, which needs no file of the system."""
    return ImageFont.load_default(size)


def shortened(text: str, width: int, size: int = 14) -> str:
    """Text that fits into so many pixels, with an ellipsis where it was cut."""
    of_size = font(size)
    text = " ".join(text.split())[:200]
    if of_size.getlength(text) <= width:
        return text
    while text and of_size.getlength(f"{text}...") > width:
        text = text[:-1]
    return f"{text}..."
