"""COCO annotations: images, categories, boxes and masks of one JSON file, as compact arrays.

Masks are polygons or runs of pixels, decoded as by pycocotools.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.datasets.storage.failures import damaged
from stateful_gpu_loader.datasets.storage.streams import damage_errors, open_stream

T = TypeVar("T")

IntArray = npt.NDArray[np.int64]

_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError)
_REMEDY = "correct the file, or fetch it again"


@dataclass(frozen=True, eq=False)
class Segments:
    """The parts of masks: several polygons, or one mask as runs of pixels, for each object."""

    firsts: IntArray
    """int64 [m + 1]: first part of each of m objects, then the number of parts."""
    ends: IntArray
    """int64 [parts + 1]: first value of each part, then the number of values."""
    values: npt.NDArray[np.int32]
    """int32 [...]: corners of polygons in fifths of a pixel, x, y, ...; or lengths of runs."""
    are_runs: npt.NDArray[np.bool_]
    """bool [parts]: whether a part is runs."""

    def draw(self, number: int, mask: npt.NDArray[np.uint8]) -> None:
        """Draw one object's mask into ``mask``, uint8 [height, width] of zeros."""
        for part in range(int(self.firsts[number]), int(self.firsts[number + 1])):
            values = self.values[self.ends[part] : self.ends[part + 1]]
            if self.are_runs[part]:
                draw_runs(mask, values.astype(np.int64))
            else:
                draw_polygon(mask, values.reshape(-1, 2))


@dataclass(frozen=True, eq=False)
class Annotations:
    """n images sorted by id, and their m objects, which keep the file's order in each image."""

    image_ids: IntArray
    """int64 [n], ascending."""
    file_names: list[str]
    sizes: IntArray
    """int64 [n, 2]: height and width in pixels; -1 if the file does not say."""
    firsts: IntArray
    """int64 [n + 1]: first object of each image, then the number of objects."""
    boxes: npt.NDArray[np.float32]
    """float32 [m, 4]: left, top, width, height in pixels."""
    category_ids: IntArray
    """int64 [m]."""
    areas: npt.NDArray[np.float32]
    """float32 [m]: in pixels; the box's area if the file does not say."""
    are_crowds: npt.NDArray[np.bool_]
    """bool [m]: whether an object is a group; False if the file does not say."""
    categories: dict[int, str]
    """Names by id, in the file's order."""
    segments: Segments | None
    """Masks; None if they were not requested."""
    num_unlisted: int
    """Number of objects left out because the file does not list their images."""
    unlisted_id: int | None
    """Image id of the first object left out; None if there is none."""


def read_annotations(path: str, *, masks: bool = False) -> Annotations:
    """Read an annotation file once.

    As in pycocotools, objects of unlisted images are left out.

    Args:
        path: a local path or a URL, plain or compressed.
        masks: whether polygons and runs are kept.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not JSON, a field is missing, an image id is repeated, or a number
            is invalid; the message names the entry.
    """
    content = _load(path)
    images = _entries(path, content, "images", required=True)
    known = _each(
        path,
        "images",
        images,
        lambda entry: (
            _integer(entry, "id"),
            _text(entry, "file_name"),
            (_size(entry, "height"), _size(entry, "width")),
        ),
    )
    ids = np.array([number for number, _, _ in known], dtype=np.int64)
    sizes = [size for _, _, size in known]
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    if (ids[1:] == ids[:-1]).any():
        twice = int(ids[1:][ids[1:] == ids[:-1]][0])
        raise damaged(path, f"two images have the id {twice}", record="images", remedy=_REMEDY)
    categories = _entries(path, content, "categories")
    by_id = dict(
        _each(
            path,
            "categories",
            categories,
            lambda entry: (_integer(entry, "id"), str(entry.get("name", ""))),
        )
    )
    objects = _entries(path, content, "annotations")
    del content
    kept, numbers, unlisted = _by_image(path, objects, ids)
    found = _Objects(len(kept), masks=masks)
    owners = iter(order[numbers].tolist())
    _each(path, "annotations", objects, lambda entry: found.put(entry, sizes[next(owners)]), kept)
    return Annotations(
        image_ids=ids,
        file_names=[known[i][1] for i in order.tolist()],
        sizes=np.array(sizes, dtype=np.int64).reshape(-1, 2)[order],
        firsts=np.searchsorted(numbers, np.arange(len(ids) + 1)).astype(np.int64),
        boxes=found.boxes,
        category_ids=found.category_ids,
        areas=found.areas,
        are_crowds=found.are_crowds,
        categories=by_id,
        segments=found.segments() if masks else None,
        num_unlisted=len(unlisted),
        unlisted_id=int(unlisted[0]) if len(unlisted) else None,
    )


class _Objects:
    """The arrays of m objects while they are filled."""

    def __init__(self, count: int, *, masks: bool) -> None:
        self.boxes = np.empty((count, 4), dtype=np.float32)
        self.category_ids = np.empty(count, dtype=np.int64)
        self.areas = np.empty(count, dtype=np.float32)
        self.are_crowds = np.zeros(count, dtype=np.bool_)
        self._masks = masks
        self._filled = 0
        self._counts: list[int] = []
        self._parts: list[npt.NDArray[np.int32]] = []
        self._are_runs: list[bool] = []

    def put(self, entry: Mapping[str, Any], size: tuple[int, int]) -> None:
        """Add the next object, of an image with this height and width."""
        i, self._filled = self._filled, self._filled + 1
        box = entry["bbox"]
        with np.errstate(over="ignore"):  # Values too large for float32 are refused below.
            self.boxes[i] = box
        if len(box) != 4 or not np.isfinite(self.boxes[i]).all():
            raise ValueError(f"its bbox is {box!r}, not four numbers")
        self.category_ids[i] = _integer(entry, "category_id")
        area = entry.get("area")
        with np.errstate(over="ignore"):
            self.areas[i] = box[2] * box[3] if area is None else area
        if not np.isfinite(self.areas[i]):
            raise ValueError(f"its area is {area!r}, not a number of pixels")
        self.are_crowds[i] = bool(entry.get("iscrowd", 0))
        if self._masks:
            self._put_mask(entry["segmentation"], size)

    def _put_mask(self, mask: Any, size: tuple[int, int]) -> None:
        if min(size) < 1:
            raise ValueError("its image has no height and width, which masks need")
        if isinstance(mask, Mapping):
            if list(mask["size"]) != list(size):
                raise ValueError(f"its mask is for {mask['size']!r} pixels, its image is {size}")
            parts = [runs_of(mask["counts"], *size).astype(np.int32)]
        elif isinstance(mask, list):
            parts = [outline_of(polygon).reshape(-1) for polygon in mask]
        else:
            raise ValueError(f"its segmentation is a {type(mask).__name__}")
        self._counts.append(len(parts))
        self._parts.extend(parts)
        self._are_runs.extend([isinstance(mask, Mapping)] * len(parts))

    def segments(self) -> Segments:
        lengths = [len(part) for part in self._parts]
        values = np.concatenate([np.empty(0, dtype=np.int32), *self._parts])
        return Segments(
            firsts=np.cumsum([0, *self._counts], dtype=np.int64),
            ends=np.cumsum([0, *lengths], dtype=np.int64),
            values=values,
            are_runs=np.array(self._are_runs, dtype=np.bool_),
        )


def _by_image(path: str, objects: list[Any], ids: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return the objects with a listed image, sorted by image, and the number of their image.

    The third array has the image ids of all other objects.
    """
    found = _each(path, "annotations", objects, lambda entry: _integer(entry, "image_id"))
    owners = np.array(found, dtype=np.int64)
    numbers = np.searchsorted(ids, owners)
    known = np.flatnonzero(np.append(ids, -1)[numbers] == owners) if len(ids) else numbers[:0]
    known = known[numbers[known] < len(ids)]
    kept = known[np.argsort(numbers[known], kind="stable")]
    return kept, numbers[kept], np.delete(owners, known)


def _load(path: str) -> Any:
    try:
        with open_stream(path) as stream:
            text = stream.read()
    except damage_errors() as error:
        raise damaged(path, f"it cannot be decompressed: {error}", remedy=_REMEDY) from error
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        what, offset = f"it is not JSON: {error.msg}", error.pos
    except UnicodeDecodeError as error:
        what, offset = f"it is not text: {error.reason}", error.start
    except RecursionError:
        what, offset = "it is nested too deeply for annotations", 0
    except ValueError as error:
        what, offset = f"it is not JSON: {error}", 0  # a number of thousands of digits
    raise damaged(path, what, offset=offset, remedy=_REMEDY)


def _entries(path: str, content: Any, name: str, *, required: bool = False) -> list[Any]:
    found = content.get(name, None if required else []) if isinstance(content, dict) else None
    if not isinstance(found, list):
        raise damaged(
            path,
            f"it has no list {name!r}",
            remedy="give a COCO file of instances, with images, annotations and categories",
        )
    return found


def _each(
    path: str,
    name: str,
    entries: list[Any],
    read: Callable[[Any], T],
    chosen: Iterable[int] | None = None,
) -> list[T]:
    """Apply ``read`` to all or the chosen entries; an error names the entry."""
    found = []
    for number in range(len(entries)) if chosen is None else chosen:
        entry = entries[number]
        try:
            found.append(read(entry))
        except _MALFORMED as error:
            known = f" (id {entry['id']!r})" if isinstance(entry, dict) and "id" in entry else ""
            what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise damaged(path, what, record=f"{name}[{number}]{known}", remedy=_REMEDY) from error
    return found


def _integer(entry: Mapping[str, Any], name: str) -> int:
    value = entry[name]
    if not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise ValueError(f"its {name} is {value!r}, not a 64-bit integer")
    return value


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = entry[name]
    if not isinstance(value, str) or not value or "\0" in value or not _is_encodable(value):
        raise ValueError(f"its {name} is {value!r}, not a name")
    return value


def _is_encodable(name: str) -> bool:
    """Return whether a file can have this name; JSON may contain invalid surrogates."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def _size(entry: Mapping[str, Any], name: str) -> int:
    value = entry.get(name, -1)
    if value == -1 or (isinstance(value, int) and 0 < value < 1 << 31):
        return int(value)
    raise ValueError(f"its {name} is {value!r}, not a number of pixels")


_SCALE = 5.0
"""Points per pixel of a polygon's outline."""

Runs = npt.NDArray[np.int64]
"""int64 [k]: numbers of pixels outside, inside, outside, ... of a mask, column by column."""


def outline_of(polygon: Sequence[float]) -> npt.NDArray[np.int32]:
    """Return a polygon's corners (x, y) in fifths of a pixel, int32 [k, 2].

    Args:
        polygon: x, y, x, y, ... in pixels from the upper left corner.

    Raises:
        ValueError: fewer than three corners, an odd number of coordinates, or an invalid number.

    >>> outline_of([0, 0, 2.5, 0, 2.5, 1]).tolist()
    [[0, 0], [13, 0], [13, 5]]
    """
    try:
        corners = np.asarray(polygon, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a polygon holds something that is not a number: {error}") from error
    if corners.ndim != 1 or len(corners) < 6 or len(corners) % 2:
        raise ValueError(
            f"a polygon has {corners.size} numbers, and needs two for each of 3 corners"
        )
    with np.errstate(over="ignore"):
        scaled = _SCALE * corners + 0.5
    if not (np.abs(scaled) < 1 << 30).all():
        raise ValueError(
            "a corner of a polygon lies more than 200 million pixels away, or is not a number"
        )
    return scaled.astype(np.int32).reshape(-1, 2)


def draw_polygon(mask: npt.NDArray[np.uint8], outline: npt.NDArray[np.int32]) -> None:
    """Set the pixels inside a polygon to 1.

    The algorithm is ``rleFrPoly`` of pycocotools' maskApi.c (Piotr Dollar and Tsung-Yi Lin, 2014),
    so the masks equal those of COCO's evaluation. The outline is drawn at five times the
    resolution. A pixel is inside if the outline crosses its column an odd number of times above it.

    Args:
        mask: uint8 [height, width].
        outline: int32 [k, 2], from :func:`outline_of`.
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
    # All runs lie within these columns; the last run may reach the end of the image.
    first = int(starts[0]) // height
    last = min(width, int(starts[-1]) // height + 1)
    bounds = np.concatenate(([first * height], starts, [last * height]))
    _draw(mask[:, first:last], np.diff(bounds))


def runs_of(counts: Any, height: int, width: int) -> Runs:
    """Return the runs of a mask from COCO's ``counts``: a list of numbers, or a compressed text.

    Raises:
        ValueError: ``counts`` is neither, or its sum is not ``height * width``.

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
        runs: runs of ``height * width`` pixels, from :func:`runs_of`.
    """
    _draw(mask, runs)


def _draw(mask: npt.NDArray[np.uint8], runs: Runs) -> None:
    """Draw runs into ``mask``, which may be a range of an image's columns."""
    height, width = mask.shape
    inside = np.repeat((np.arange(len(runs)) % 2).astype(np.uint8), runs)
    mask |= inside.reshape(width, height).T


def _line_points(
    outline: npt.NDArray[np.int32],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return x and y of all points on the closed outline, line by line, in its direction."""
    corners = outline.astype(np.int64)
    xs, ys = corners.T
    next_xs, next_ys = np.roll(xs, -1), np.roll(ys, -1)
    wide, high = np.abs(next_xs - xs), np.abs(next_ys - ys)
    is_wide = wide >= high
    # A line is drawn from its lower end, so that both directions give the same points.
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
    # Truncated towards zero, as in C.
    across = (np.where(is_wide, y0, x0)[line] + rise[line] * step + 0.5).astype(np.int64)
    of_wide = is_wide[line]
    return np.where(of_wide, along, across), np.where(of_wide, across, along)


def _numbers_of(text: str) -> list[int]:
    """Decode numbers of five bits per character; from the fourth on differences (rleFrString)."""
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
