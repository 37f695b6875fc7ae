"""Masks of COCO annotations: polygons and runs of pixels, as pycocotools decodes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_SCALE = 5.0
"""Points of a polygon's outline a pixel."""

Runs = npt.NDArray[np.int64]
"""int64 [k]: pixels outside, inside, outside, ... of a mask, column after column."""


def outline_of(polygon: Sequence[float]) -> npt.NDArray[np.int32]:
    """int32 [k, 2]: (x, y) of a polygon's corners in fifths of a pixel, for :func:`draw_polygon`.

    Args:
        polygon: x, y, x, y, ... in pixels from the upper left corner.

    Raises:
        ValueError: fewer than three corners, half a corner, or a number that is none.

    >>> outline_of([0, 0, 2.5, 0, 2.5, 1]).tolist()
    [[0, 0], [13, 0], [13, 5]]
    """
    try:
        corners = np.asarray(polygon, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a polygon holds something that is no number: {error}") from error
    if corners.ndim != 1 or len(corners) < 6 or len(corners) % 2:
        raise ValueError(
            f"a polygon has {corners.size} numbers, and needs two for each of 3 corners"
        )
    with np.errstate(over="ignore"):
        scaled = _SCALE * corners + 0.5
    if not (np.abs(scaled) < 1 << 30).all():
        raise ValueError("a corner of a polygon lies more than 200 million pixels away, or nowhere")
    return scaled.astype(np.int32).reshape(-1, 2)


def draw_polygon(mask: npt.NDArray[np.uint8], outline: npt.NDArray[np.int32]) -> None:
    """Set the pixels inside a polygon to 1.

    The algorithm is ``rleFrPoly`` of pycocotools' maskApi.c (Piotr Dollar and Tsung-Yi Lin, 2014),
    whose masks are those that COCO's evaluation knows: the outline is drawn five times as fine, and
    a pixel is inside if the outline crosses its column an odd number of times above it.

    Args:
        mask: uint8 [height, width].
        outline: int32 [k, 2], as :func:`outline_of` gives it.
    """
    height, width = mask.shape
    xs, ys = _line_points(outline)
    crossings = np.flatnonzero(xs[1:] != xs[:-1])
    before, after = xs[crossings], xs[crossings + 1]
    column = (np.where(after < before, after, after - 1) + 0.5) / _SCALE - 0.5
    is_centre = (np.floor(column) == column) & (column >= 0) & (column <= width - 1)
    row = (np.minimum(ys[crossings], ys[crossings + 1]) + 0.5) / _SCALE - 0.5
    row = np.ceil(np.clip(row, 0, height)).astype(np.int64)
    starts = np.sort(column[is_centre].astype(np.int64) * height + row[is_centre])
    if not len(starts):
        return
    # All runs begin and end within these columns, the last one perhaps at the end of the image.
    first = int(starts[0]) // height
    last = min(width, int(starts[-1]) // height + 1)
    bounds = np.concatenate(([first * height], starts, [last * height]))
    _draw(mask[:, first:last], np.diff(bounds))


def runs_of(counts: Any, height: int, width: int) -> Runs:
    """The runs of a mask, from COCO's ``counts``: a list of numbers, or a compressed text.

    Raises:
        ValueError: they are neither, or do not add up to ``height * width``.

    >>> runs_of([2, 1, 3], 2, 3), runs_of("213", 2, 3)
    (array([2, 1, 3]), array([2, 1, 3]))
    """
    if isinstance(counts, str):
        numbers = _numbers_of(counts)
    elif isinstance(counts, list) and all(isinstance(number, int) for number in counts):
        numbers = counts
    else:
        raise ValueError("the counts of a mask are neither a text nor a list of numbers")
    limit = height * width
    if min(numbers, default=0) < 0 or max(numbers, default=0) > limit or sum(numbers) != limit:
        raise ValueError(
            f"the runs of a mask are {sum(numbers)} pixels, and it has {width}x{height} = {limit}"
        )
    return np.array(numbers, dtype=np.int64)


def draw_runs(mask: npt.NDArray[np.uint8], runs: Runs) -> None:
    """Set the pixels of every second run to 1.

    Args:
        mask: uint8 [height, width].
        runs: as :func:`runs_of` gives them, of as many pixels.
    """
    _draw(mask, runs)


def _draw(mask: npt.NDArray[np.uint8], runs: Runs) -> None:
    """Draw runs into all of ``mask``, or into the part of its columns that it is."""
    height, width = mask.shape
    inside = np.repeat((np.arange(len(runs)) % 2).astype(np.uint8), runs)
    mask |= inside.reshape(width, height).T


def _line_points(
    outline: npt.NDArray[np.int32],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """x and y of all points on the closed outline, line after line, in its direction."""
    corners = outline.astype(np.int64)
    xs, ys = corners.T
    next_xs, next_ys = np.roll(xs, -1), np.roll(ys, -1)
    wide, high = np.abs(next_xs - xs), np.abs(next_ys - ys)
    is_wide = wide >= high
    # The line is drawn from its lower end, so that both directions give the same points.
    is_turned = np.where(is_wide, xs > next_xs, ys > next_ys)
    x0, y0 = np.where(is_turned, next_xs, xs), np.where(is_turned, next_ys, ys)
    x1, y1 = np.where(is_turned, xs, next_xs), np.where(is_turned, ys, next_ys)
    lengths = np.where(is_wide, wide, high)
    rise = np.where(is_wide, y1 - y0, x1 - x0) / np.maximum(lengths, 1)

    points = lengths + 1
    line = np.repeat(np.arange(len(points)), points)
    step = np.arange(len(line)) - np.repeat(np.cumsum(points) - points, points)
    step = np.where(is_turned[line], lengths[line] - step, step)
    along = np.where(is_wide, x0, y0)[line] + step
    # Cut off towards zero, as C does.
    across = (np.where(is_wide, y0, x0)[line] + rise[line] * step + 0.5).astype(np.int64)
    of_wide = is_wide[line]
    return np.where(of_wide, along, across), np.where(of_wide, across, along)


def _numbers_of(text: str) -> list[int]:
    """Numbers of five bits a character, the third and later ones as differences (rleFrString)."""
    numbers: list[int] = []
    value, shift = 0, 0
    for place, character in enumerate(text):
        bits = ord(character) - 48
        if not 0 <= bits < 64 or shift > 60:
            raise ValueError(f"the counts of a mask hold {character!r} at place {place}")
        value |= (bits & 0x1F) << shift
        shift += 5
        if bits & 0x20:
            continue
        if bits & 0x10:
            value -= 1 << shift
        numbers.append(value + numbers[-2] if len(numbers) > 2 else value)
        value, shift = 0, 0
    if shift:
        raise ValueError("the counts of a mask end within a number")
    return numbers
