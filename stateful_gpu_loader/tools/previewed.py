"""PreviewedSample: one sample of a coming batch, to be drawn for a person or told to a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from stateful_gpu_loader.tools.batch_images import Objects

Point = tuple[float, float]


@dataclass(frozen=True)
class Region:
    """The part of the original that became the delivered image, in pixels of the original.

    It may reach beyond the original, where pixels were padded.
    """

    corners: tuple[Point, Point, Point, Point]
    """(x, y) of what became the delivered image's upper left, upper right, lower right and lower
    left corner; a whole original reaches from (0, 0) to (width, height)."""

    @property
    def rectangle(self) -> tuple[float, float, float, float] | None:
        """Left, top, right and bottom; None if the part is no upright rectangle."""
        (x0, y0), (x1, y1), (x2, y2), (x3, y3) = self.corners
        if not (y0 == y1 and x1 == x2 and y2 == y3 and x3 == x0):
            return None
        return min(x0, x1), min(y0, y2), max(x0, x1), max(y0, y2)

    @property
    def flips(self) -> tuple[str, ...]:
        """ "horizontal" and "vertical" where an upright rectangle was mirrored."""
        (x0, y0), _, (x2, y2), _ = self.corners
        if self.rectangle is None:
            return ()
        return ("horizontal",) * (x2 < x0) + ("vertical",) * (y2 < y0)


@dataclass(frozen=True)
class SamplePlace:
    """Where a sample is in its dataset and its epoch; None stands for what is not known."""

    name: str = "index unknown"
    """What a person calls the sample by, such as "index 5" or "lane 1, sample 0"."""
    index: Any = None
    """Index in the dataset; of a CallableSource the number of its call in the epoch."""
    position: int | None = None
    """Position in the epoch's order, all ranks together; a sharded dataset has none."""
    lane: int | None = None
    """Lane of a sharded dataset."""
    lane_sample: int | None = None
    """Number of the sample among those that its lane gives in the epoch, from 0."""
    stored: str | None = None
    """Shard of a sharded dataset, and cursor in it, at which the sample is stored."""


@dataclass(frozen=True, eq=False)
class PreviewedSample:
    """One sample of a coming batch."""

    batch: int
    """Number of the batch, 0 for the one that comes next."""
    place: SamplePlace
    label: str
    """Class or value of the target; empty if there is none that can be shown in a line."""
    image: Tensor
    """The delivered image to be looked at, uint8 [3, H, W]."""
    objects: Objects | None
    """Boxes and masks in the delivered image."""
    original: Tensor | None
    """The decoded image before the recipes, uint8 [3, H, W]; None if it is not known."""
    original_objects: Objects | None
    """Boxes and masks in the original."""
    region: Region | None
    """Part of the original that was delivered; None if it is not known."""
    parameters: tuple[tuple[str, dict[str, Any]], ...]
    """Name of each recipe, in order, and the numbers that it drew for this sample."""
    notes: tuple[str, ...]
    """What a person must know to read the images right, a sentence each."""

    @property
    def title(self) -> str:
        """Name, position, size and flips, in a line."""
        parts = [self.place.name]
        if self.place.position is not None:
            parts.append(f"position {self.place.position}")
        height, width = self.image.shape[1:]
        parts.append(f"{width}x{height}")
        if self.region is not None:
            parts += [f"flipped {direction}ly" for direction in self.region.flips]
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """All but the pixels, of plain values, as ``stateful-gpu-loader preview --json`` has it."""
        place, region, objects = self.place, self.region, self.objects
        rectangle = None if region is None else region.rectangle
        boxes = None
        if objects is not None:
            labels = objects.labels or (None,) * len(objects.boxes)
            pairs = zip(labels, objects.boxes.tolist(), strict=True)
            boxes = [{"label": label, "box": box} for label, box in pairs]
        return {
            "batch": self.batch,
            **vars(place),
            "index": place.index if isinstance(place.index, int | None) else str(place.index),
            "label": self.label,
            "size": _size(self.image),
            "original_size": None if self.original is None else _size(self.original),
            "crop": None if rectangle is None else list(rectangle),
            "corners": None if region is None else [list(corner) for corner in region.corners],
            "flips": None if region is None else list(region.flips),
            "drawn": [{"recipe": name, **numbers} for name, numbers in self.parameters],
            "boxes": boxes,
            "notes": list(self.notes),
        }


def legend(samples: Sequence[PreviewedSample]) -> list[str]:
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


def _size(image: Tensor) -> list[int]:
    """Width and height."""
    return [image.shape[2], image.shape[1]]
