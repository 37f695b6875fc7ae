"""Looks at the coming batches: what is delivered, from which part of which original, and why."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader

from stateful_gpu_loader.decoders import BatchDecoder, Decoder
from stateful_gpu_loader.engine.engine import Engine
from stateful_gpu_loader.engine.iterator import Run
from stateful_gpu_loader.engine.makers.choice import read_again
from stateful_gpu_loader.engine.makers.drawn import DrawnBatch
from stateful_gpu_loader.engine.makers.images import decode
from stateful_gpu_loader.engine.peek import twin_of
from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.loader import StatefulGPULoader
from stateful_gpu_loader.randomness.global_generators import caller_generators_restored
from stateful_gpu_loader.records import Request
from stateful_gpu_loader.tools.batch_images import (
    Objects,
    label_of,
    named_classes,
    objects_of,
    setting_of,
    split_batch,
)
from stateful_gpu_loader.tools.pixels import Pixels
from stateful_gpu_loader.transforms import Compose
from stateful_gpu_loader.transforms.motion import at_rest, inverse, one_after_the_other

Point = tuple[float, float]


class NoPreview(LoaderError):
    """There is nothing to be seen: no next batch, or no images in it."""


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


@dataclass(frozen=True, eq=False)
class PreviewedSample:
    """One sample of a coming batch."""

    batch: int
    """Number of the batch, 0 for the one that comes next."""
    index: Any
    """Index in the dataset; None if it is not known."""
    position: int | None
    """Position in the epoch's order, all ranks together; None if it is not known."""
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


def preview(loader: DataLoader[Any], num_batches: int = 1) -> list[PreviewedSample]:
    """Return the samples of the batches that the loader would deliver next.

    A copy of the loader makes the batches, so nothing of the loader changes: see
    ``StatefulGPULoader.peek``, whose limits apply.

    Args:
        loader: a StatefulGPULoader; if a pass is under way, it is the rest of that pass.
        num_batches: number of batches to look at; fewer are returned at the end of the epoch.

    Raises:
        NoPreview: it is another loader, no batch is left, or a batch has no images.

    >>> import torch
    >>> loader = StatefulGPULoader([(torch.zeros(3, 8, 8), 7)], batch_size=1)
    >>> [sample] = preview(loader)
    >>> sample.index, sample.label, sample.image.shape
    (0, '7', torch.Size([3, 8, 8]))
    """
    if not isinstance(loader, StatefulGPULoader):
        raise NoPreview(
            f"preview needs a StatefulGPULoader, and this is {type(loader).__name__}, whose next "
            "batch cannot be seen without taking it. Remedy: build the loader as StatefulGPULoader "
            "with the same arguments"
        )
    loader._engine.take_requested_epoch()
    twin = twin_of(loader._engine)
    samples: list[PreviewedSample] = []
    with caller_generators_restored(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*iterable dataset are read again")
        run = Run(twin, loader.__len__)
        for number in range(num_batches):
            batch = next(run, None)
            if batch is None:
                break
            samples += _samples(twin, batch, number)
        del run  # which ends its workers
    if not samples:
        raise NoPreview("the epoch has no batch left. Remedy: look before its end, or at the next")
    return samples


def _samples(engine: Engine, batch: Any, number: int) -> list[PreviewedSample]:
    plan = engine.plan
    split = split_batch(batch, batched=plan.config.collation[1])
    if split is None:
        raise NoPreview(
            f"the batch, {type(batch).__name__}, holds no images: no uint8 or float tensor "
            "[n, C, H, W] and no list of tensors [C, H, W], with C of 1 or 3"
        )
    images, targets = split
    pixels = Pixels.of(images, [plan.transform, plan.batch_transform, plan.config.dataset])
    shared_notes = list(pixels.notes)
    if plan.batch_transform is not None:
        shared_notes.append(f"After batch_transform: {plan.batch_transform.fingerprint()}.")
    origins, note = _origins(engine, len(images))
    if note:
        shared_notes.append(note)
    keys = _keys(engine, len(images))
    dataset = plan.config.dataset
    names = named_classes(dataset)
    box_format = setting_of(dataset, "box_format") or "xyxy"
    in_parts = bool(setting_of(dataset, "ratio"))
    samples = []
    for i, image in enumerate(images):
        shown = pixels.shown(image)
        origin = origins[i] if origins else _UNKNOWN
        index, position = keys[i] if keys else (None, None)
        if origins:
            index, position = origin.index, origin.position
        size = (shown.shape[1], shown.shape[2])
        samples.append(
            PreviewedSample(
                batch=number,
                index=index,
                position=position,
                label=label_of(targets[i], names),
                image=shown,
                objects=objects_of(targets[i], size, names, box_format, in_parts),
                original=origin.image,
                original_objects=None
                if origin.image is None
                else objects_of(
                    origin.target,
                    (origin.image.shape[1], origin.image.shape[2]),
                    names,
                    box_format,
                    in_parts,
                ),
                region=origin.region,
                parameters=origin.parameters,
                notes=(*shared_notes, *origin.notes),
            )
        )
    return samples


@dataclass(frozen=True, eq=False)
class _Origin:
    """What one image was made from."""

    index: Any = None
    position: int | None = None
    image: Tensor | None = None
    target: Any = None
    region: Region | None = None
    parameters: tuple[tuple[str, dict[str, Any]], ...] = ()
    notes: tuple[str, ...] = ()


_UNKNOWN = _Origin()


def _origins(engine: Engine, n: int) -> tuple[list[_Origin], str]:
    """The originals of the last batch in its order, and what is to be said about them."""
    plan = engine.plan
    name = type(plan.config.dataset).__name__
    if plan.source is None:
        if plan.transform is None:
            return [], f"{name} returns finished images: no original and no drawn numbers known."
        return [], "Own transform: no original and no drawn numbers known."
    if plan.has_worker_states:
        return [], f"{name} has a state, which reading the originals again would move."
    if engine.last is None:
        return [], ""
    recipes = plan.recipes
    batch = read_again(plan, *engine.last, recipes or Compose([]))
    if len(batch.keys) != n:
        return [], (
            f"The batch has {n} images and was made from {len(batch.keys)}: no originals shown."
        )
    origins = [_origin(engine, batch, recipes, i) for i in range(n)]
    return origins, "Own transform: no drawn numbers known." if recipes is None else ""


def _origin(engine: Engine, batch: DrawnBatch, recipes: Compose | None, i: int) -> _Origin:
    plan, key, sample = engine.plan, batch.keys[i], batch.samples[i]
    decoder = (
        cast("BatchDecoder", plan.decoder).cpu
        if plan.finishes_images
        else cast("Decoder", plan.decoder)
    )
    image = decode(decoder, sample, batch.headers[i], key)
    if recipes is None:
        return _Origin(key.index, key.position, image, sample.target)
    region, notes = _region(recipes, batch, i)
    parameters = []
    for recipe, drawn in zip(recipes.recipes, batch.drawn.draws, strict=True):
        named = dict(recipe.named(drawn))
        name = named.pop("recipe")
        parameters.append((name, {each: rows[i].tolist() for each, rows in named.items()}))
    return _Origin(key.index, key.position, image, sample.target, region, tuple(parameters), notes)


def _region(recipes: Compose, batch: DrawnBatch, i: int) -> tuple[Region | None, tuple[str, ...]]:
    """Where sample i comes from; recipes that do not tell where they move points are named."""
    header = batch.headers[i]
    size = np.array([[header.height, header.width]], dtype=np.int64)
    moved, untold = at_rest(1), []
    for recipe, drawn in zip(recipes.recipes, batch.drawn.draws, strict=True):
        motion = recipe.motion(drawn.numbers[i : i + 1], size)
        after = drawn.sizes[i : i + 1]
        if motion is not None:
            moved = one_after_the_other(moved, motion)
        elif (after != size).any():
            name = type(recipe).__name__
            return None, (f"{name} does not tell which part it took: no outline drawn.",)
        else:
            untold.append(type(recipe).__name__)
        size = after
    height, width = size[0].tolist()
    back = inverse(moved)[0]
    corners = [back @ (x, y, 1.0) for x, y in [(0, 0), (width, 0), (width, height), (0, height)]]
    points = [(_whole(x), _whole(y)) for x, y in corners]
    notes = (f"Pixels that {', '.join(untold)} moves are not in the outline.",) if untold else ()
    return Region((points[0], points[1], points[2], points[3])), notes


def _whole(value: float) -> float:
    """Without what floating-point arithmetic added to a multiple of a 65536th of a pixel."""
    return round(float(value) * 65536) / 65536 + 0.0


def _keys(engine: Engine, n: int) -> list[tuple[Any, int | None]]:
    """Index and position of each sample where the request of the last batch tells them."""
    if engine.last is None:
        return []
    request, bad = engine.last
    if bad or not isinstance(request, Request) or len(request.indices) != n:
        return []
    keys = request.keys()
    return [(key.index, key.position) for key in keys]


def parameters_text(parameters: Mapping[str, Any]) -> str:
    """Numbers of one recipe for a person.

    >>> parameters_text({"top": 3, "angle": 1.23456})
    'top 3, angle 1.235'
    """
    return ", ".join(f"{name} {_number(value)}" for name, value in parameters.items())


def _number(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_number, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
