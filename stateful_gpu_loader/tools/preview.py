"""Looks at the coming batches: their images, originals, crops and random draws."""

from __future__ import annotations

import html
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from stateful_gpu_loader.datasets.lanes import MOST_SAMPLES
from stateful_gpu_loader.decoders import BatchDecoder, Decoder
from stateful_gpu_loader.engine.engine import Engine
from stateful_gpu_loader.engine.makers.choice import read_again
from stateful_gpu_loader.engine.makers.images import DrawnBatch, decode
from stateful_gpu_loader.engine.plan import Plan
from stateful_gpu_loader.engine.readers.calls import MOST_IMAGES
from stateful_gpu_loader.engine.run import Run
from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.loader import StatefulGPULoader
from stateful_gpu_loader.randomness.global_generators import caller_generators_restored
from stateful_gpu_loader.records import LaneTurn, Request, RestTurn
from stateful_gpu_loader.state.lane_cursor import LaneCursor
from stateful_gpu_loader.tools.batch_images import (
    Objects,
    label_of,
    named_classes,
    objects_of,
    setting_of,
    split_batch,
)
from stateful_gpu_loader.transforms import Compose
from stateful_gpu_loader.transforms.motion import at_rest, inverse, one_after_the_other

Point = tuple[float, float]


@dataclass(frozen=True)
class Region:
    """Part of the original that became the delivered image, in pixels of the original.

    Padding may extend beyond the original.
    """

    corners: tuple[Point, Point, Point, Point]
    """(x, y) of the upper left, upper right, lower right and lower left corner of the delivered
    image; the original extends from (0, 0) to (width, height)."""

    @property
    def rectangle(self) -> tuple[float, float, float, float] | None:
        """Left, top, right and bottom of an upright rectangle, otherwise None."""
        (x0, y0), (x1, y1), (x2, y2), (x3, y3) = self.corners
        if not (y0 == y1 and x1 == x2 and y2 == y3 and x3 == x0):
            return None
        return min(x0, x1), min(y0, y2), max(x0, x1), max(y0, y2)

    @property
    def flips(self) -> tuple[str, ...]:
        """ "horizontal" and "vertical", if an upright rectangle was mirrored this way."""
        (x0, y0), _, (x2, y2), _ = self.corners
        if self.rectangle is None:
            return ()
        return ("horizontal",) * (x2 < x0) + ("vertical",) * (y2 < y0)


@dataclass(frozen=True)
class SamplePlace:
    """Place of a sample in its dataset and its epoch; None stands for an unknown value."""

    name: str = "index unknown"
    """Readable name, such as "index 5" or "lane 1, sample 0"."""
    index: Any = None
    """Index in the dataset; with a CallableSource the number of its call in the epoch."""
    position: int | None = None
    """Position in the epoch's order, all ranks together; None in a sharded dataset."""
    lane: int | None = None
    """Lane of a sharded dataset."""
    lane_sample: int | None = None
    """Number of the sample in the lane and epoch, counted from 0."""
    stored: str | None = None
    """Shard and cursor where the sample is stored."""


@dataclass(frozen=True, eq=False)
class PreviewedSample:
    """One sample of a coming batch."""

    batch: int
    """Number of the batch; 0 is the next batch."""
    place: SamplePlace
    label: str
    """Class or value of the target; empty if it cannot be shown in a line."""
    image: Tensor
    """Delivered image, converted for display, uint8 [3, H, W]."""
    objects: Objects | None
    """Boxes and masks in the delivered image."""
    original: Tensor | None
    """Decoded image before the recipes, uint8 [3, H, W], if known."""
    original_objects: Objects | None
    """Boxes and masks in the original."""
    region: Region | None
    """Part of the original that was delivered, if known."""
    parameters: tuple[tuple[str, dict[str, Any]], ...]
    """Name of each recipe, in order, and the numbers that it drew for this sample."""
    notes: tuple[str, ...]
    """Notes on the images, one sentence each."""

    @property
    def title(self) -> str:
        """Name, position, size and flips, in one line."""
        parts = [self.place.name]
        if self.place.position is not None:
            parts.append(f"position {self.place.position}")
        height, width = self.image.shape[1:]
        parts.append(f"{width}x{height}")
        if self.region is not None:
            parts += [f"flipped {direction}ly" for direction in self.region.flips]
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the pixels, as ``stateful-gpu-loader preview --json`` prints it."""
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
    """Return the text above the pictures: a legend, and all notes."""
    lines = []
    if any(sample.region is not None for sample in samples):
        lines.append(
            "Left: the original. Right: the delivered image. The outline marks the part that was "
            "taken; its dot became the upper left corner."
        )
    for note in dict.fromkeys(note for sample in samples for note in sample.notes):
        number = sum(note in sample.notes for sample in samples)
        lines.append(note if number == len(samples) else f"{note} ({number} of {len(samples)})")
    return lines


def _size(image: Tensor) -> list[int]:
    """Return width and height."""
    return [image.shape[2], image.shape[1]]


class NoPreview(LoaderError):
    """There is nothing to show: no next batch, or a batch without images."""


class Preview(list[PreviewedSample]):
    """The samples of the coming batches, which notebooks show as pictures."""

    def _repr_html_(self) -> str:
        from stateful_gpu_loader.tools.preview_pictures import html_page

        # The frame separates the page's styles from the notebook's.
        style = "width:100%; height:36em; border:0"
        return f'<iframe style="{style}" srcdoc="{html.escape(html_page(self))}"></iframe>'


def preview(loader: DataLoader[Any], num_batches: int = 1) -> Preview:
    """Return the samples of the batches that the loader would deliver next.

    A copy of the loader makes the batches, so the loader does not change; the limits of
    ``StatefulGPULoader.peek`` apply.

    Args:
        loader: a StatefulGPULoader; during a pass, the next batches of that pass are returned.
        num_batches: number of batches; at the end of the epoch there are fewer.

    Raises:
        NoPreview: the loader is of another class, no batch is left, or a batch has no images.

    >>> import torch
    >>> loader = StatefulGPULoader([(torch.zeros(3, 8, 8), 7)], batch_size=1)
    >>> [sample] = preview(loader)
    >>> sample.title, sample.label, sample.image.shape
    ('index 0, position 0, 8x8', '7', torch.Size([3, 8, 8]))
    """
    if not isinstance(loader, StatefulGPULoader):
        raise NoPreview(
            f"preview needs a StatefulGPULoader. A {type(loader).__name__} cannot show its next "
            "batch without delivering it. Remedy: build a StatefulGPULoader with the same arguments"
        )
    loader._engine.take_requested_epoch()
    twin = loader._engine.twin()
    samples = Preview()
    with caller_generators_restored(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*iterable dataset are read again")
        run = Run(twin, loader.__len__)
        for number in range(num_batches):
            batch = next(run, None)
            if batch is None:
                break
            samples += _samples(twin, batch, number)
        del run  # this ends its workers
    if not samples:
        raise NoPreview("the epoch has no batch left. Remedy: preview before the end of an epoch")
    return samples


def _samples(engine: Engine, batch: Any, number: int) -> list[PreviewedSample]:
    plan = engine.plan
    dataset = plan.config.dataset
    split = split_batch(batch, batched=plan.config.collation[1])
    if split is None:
        raise NoPreview(
            f"the batch, {type(batch).__name__}, has no images. Remedy: return a uint8 or float "
            "tensor [n, C, H, W], or a list of tensors [C, H, W], with C = 1 or 3"
        )
    images, targets = split
    pixels = Pixels.of(images, [plan.transform, plan.batch_transform, dataset])
    notes = [*pixels.notes]
    if plan.batch_transform is not None:
        notes.append(f"After batch_transform: {plan.batch_transform.fingerprint()}.")
    origins, note = origins_of(engine, len(images))
    notes += [note] * bool(note)
    names = named_classes(dataset)
    box_format = setting_of(dataset, "box_format") or "xyxy"
    in_parts = bool(setting_of(dataset, "ratio"))
    samples = []
    for image, target, origin in zip(images, targets, origins, strict=True):
        shown, original = pixels.shown(image), origin.image
        samples.append(
            PreviewedSample(
                batch=number,
                place=origin.place,
                label=label_of(target, names),
                image=shown,
                objects=objects_of(target, shown, names, box_format, in_parts),
                original=original,
                original_objects=None
                if original is None
                else objects_of(origin.target, original, names, box_format, in_parts),
                region=origin.region,
                parameters=origin.parameters,
                notes=(*notes, *origin.notes),
            )
        )
    return samples


@dataclass(frozen=True, eq=False)
class Origin:
    """Origin of one image; fields as in PreviewedSample."""

    place: SamplePlace
    image: Tensor | None = None
    target: Any = None
    region: Region | None = None
    parameters: tuple[tuple[str, dict[str, Any]], ...] = ()
    notes: tuple[str, ...] = ()


def origins_of(engine: Engine, n: int) -> tuple[list[Origin], str]:
    """Return the origins of the n images of the last batch, and a note about all of them.

    Raises:
        LoaderError: the batch, made again, is not the same.
    """
    plan = engine.plan
    name = type(plan.config.dataset).__name__
    places = _places(engine, n)
    known = [Origin(place) for place in places]
    if plan.source is None:
        if plan.transform is None:
            return known, f"{name} returns finished images: original and drawn numbers are unknown."
        return known, "With a transform of your own, original and drawn numbers are unknown."
    if plan.has_worker_states:
        return known, f"No originals shown: reading them again would change the state of {name}."
    last = engine.passes.last
    if last is None:
        return known, ""
    recipes = plan.recipes
    batch = read_again(plan, last.request, last.bad, recipes or Compose([]))
    if len(batch.keys) != n:
        return known, (
            f"No originals shown: the batch has {n} images, made from {len(batch.keys)} samples."
        )
    origins = [_origin(plan, batch, recipes, i) for i in range(n)]
    note = "With a transform of your own, drawn numbers are unknown."
    return origins, note if recipes is None else ""


def _places(engine: Engine, n: int) -> list[SamplePlace]:
    """Return the places of the last batch's n samples, as far as known."""
    unknown = [SamplePlace()] * n
    last = engine.passes.last
    if last is None:
        return unknown
    request, bad = last.request, last.bad
    if isinstance(request, LaneTurn) and request.cursor is not None:
        first = LaneCursor.from_text(request.cursor).count
        places = [_in_lane(request.lane, first + i) for i in range(request.num_samples)]
    elif isinstance(request, RestTurn):
        places = [
            _in_lane(part.lane, LaneCursor.from_text(part.cursor).count + part.skip + i)
            for part in request.parts
            for i in range(part.num_samples)
        ]
    elif isinstance(request, Request) and _makes_batches(engine.plan):
        (call,) = request.index_list()
        return [_in_call(call, i) for i in range(n)]
    elif isinstance(request, Request) and not bad:
        keys = request.keys()
        places = [_at(engine.plan, key.index, key.position) for key in keys]
    else:
        return unknown
    return places if len(places) == n else unknown


def _place_of(plan: Plan, key: Any) -> SamplePlace:
    """Return the place of a sample; keys of lanes and calls hold two numbers in one."""
    if plan.lanes is not None:
        lane, number = divmod(key.position, MOST_SAMPLES)
        return _in_lane(lane, number, str(key.index))
    if _makes_batches(plan):
        return _in_call(*divmod(key.position, MOST_IMAGES))
    return _at(plan, key.position if plan.calls is not None else key.index, key.position)


def _makes_batches(plan: Plan) -> bool:
    return plan.calls is not None and plan.calls.batch


def _in_lane(lane: int, number: int, stored: str | None = None) -> SamplePlace:
    name = f"lane {lane}, sample {number}"
    return SamplePlace(name, lane=lane, lane_sample=number, stored=stored)


def _in_call(call: int, image: int) -> SamplePlace:
    return SamplePlace(f"batch {call}, image {image}", index=call, position=call)


def _at(plan: Plan, index: Any, position: int) -> SamplePlace:
    name = f"index {index}" if plan.calls is None else f"sample {index}"
    return SamplePlace(name, index=index, position=position)


def _origin(plan: Plan, batch: DrawnBatch, recipes: Compose | None, i: int) -> Origin:
    key, opened = batch.keys[i], batch.images[i]
    decoder = (
        cast("BatchDecoder", plan.decoder).cpu
        if plan.finishes_images
        else cast("Decoder", plan.decoder)
    )
    place, image = _place_of(plan, key), decode(decoder, opened, key)
    if recipes is None:
        return Origin(place, image, opened.target)
    region, notes = _region(recipes, batch, i)
    parameters = []
    for recipe, drawn in zip(recipes.recipes, batch.drawn.draws, strict=True):
        named = dict(recipe.named(drawn))
        name = named.pop("recipe")
        parameters.append((name, {each: rows[i].tolist() for each, rows in named.items()}))
    return Origin(place, image, opened.target, region, tuple(parameters), notes)


def _region(recipes: Compose, batch: DrawnBatch, i: int) -> tuple[Region | None, tuple[str, ...]]:
    """Return the region of sample i, and notes on recipes whose motion of pixels is unknown."""
    header = batch.images[i].header
    size = np.array([[header.height, header.width]], dtype=np.int64)
    moved, immovable = at_rest(1), []
    for recipe, drawn in zip(recipes.recipes, batch.drawn.draws, strict=True):
        motion = recipe.motion(drawn.numbers[i : i + 1], size)
        after = drawn.sizes[i : i + 1]
        if motion is not None:
            moved = one_after_the_other(moved, motion)
        elif (after != size).any():
            name = type(recipe).__name__
            return None, (f"No outline drawn: the part that {name} took is unknown.",)
        else:
            immovable.append(type(recipe).__name__)
        size = after
    height, width = size[0].tolist()
    back = inverse(moved)[0]
    corners = [back @ (x, y, 1.0) for x, y in [(0, 0), (width, 0), (width, height), (0, height)]]
    points = [(_whole(x), _whole(y)) for x, y in corners]
    notes = (
        (f"Pixels that {', '.join(immovable)} moves are not in the outline.",) if immovable else ()
    )
    return Region((points[0], points[1], points[2], points[3])), notes


def _whole(value: float) -> float:
    """Round to a multiple of 1/65536 pixel."""
    return round(float(value) * 65536) / 65536 + 0.0


_HOLDERS = ("recipes", "transforms", "transform", "steps", "dataset", "datasets")


@dataclass(frozen=True)
class Pixels:
    """Conversion of a batch's values to bytes: ``value * scale + shift``."""

    scale: tuple[float, ...]
    """One number for each channel, or one for all channels."""
    shift: tuple[float, ...]
    notes: tuple[str, ...] = ()
    """Assumptions, in words."""

    @classmethod
    def of(cls, images: Sequence[Tensor], holders: Sequence[Any]) -> Pixels:
        """Derive the conversion from a Normalize, or from the values if none is found.

        Args:
            images: images of one batch, each [C, H, W].
            holders: transforms and datasets that may contain a Normalize.

        >>> Pixels.of([torch.ones(1, 2, 2)], []).scale
        (255.0,)
        """
        if all(image.dtype is torch.uint8 for image in images):
            return cls((1.0,), (0.0,))
        found = [step for holder in holders for step in _normalizers(holder, depth=6)]
        if len(found) == 1:
            mean, std = ([float(each) for each in values] for values in found[0])
            return cls(tuple(255 * each for each in std), tuple(255 * each for each in mean))
        lowest = min(float(image.min()) for image in images)
        highest = max(float(image.max()) for image in images)
        several = "Several Normalize were found" if found else "No Normalize was found"
        span = f"{lowest:.3g} to {highest:.3g}"
        if lowest >= 0 and highest <= 1:
            return cls((255.0,), (0.0,), (f"{several}: values {span} are shown as 0 to 1.",))
        if lowest >= 0 and highest <= 255:
            return cls((1.0,), (0.0,), (f"{several}: values {span} are shown as 0 to 255.",))
        scale = 255 / (highest - lowest) if highest > lowest else 1.0
        note = f"{several}: the values {span} are stretched from black to white."
        return cls((scale,), (-lowest * scale,), (note,))

    def shown(self, image: Tensor) -> Tensor:
        """Return an image for display, uint8 [3, H, W] on the CPU."""
        plain = image.detach().as_subclass(Tensor).cpu()
        if plain.dtype is not torch.uint8:
            channels = plain.to(torch.float32)
            scale = torch.tensor(self.scale).view(-1, 1, 1)
            shift = torch.tensor(self.shift).view(-1, 1, 1)
            plain = (channels * scale + shift).nan_to_num(0.0).round().clamp(0, 255)
        return plain.to(torch.uint8).expand(3, -1, -1).contiguous()


def _normalizers(holder: Any, depth: int) -> Iterator[tuple[Any, Any]]:
    """Yield mean and std of each Normalize in nested transforms, also of torchvision's."""
    if isinstance(holder, list | tuple):
        if len(holder) <= 64:
            for each in holder:
                yield from _normalizers(each, depth)
    elif (
        type(holder).__name__ == "Normalize" and hasattr(holder, "mean") and hasattr(holder, "std")
    ):
        yield holder.mean, holder.std
    elif depth and hasattr(holder, "__dict__"):
        for name in _HOLDERS:
            yield from _normalizers(vars(holder).get(name), depth - 1)
