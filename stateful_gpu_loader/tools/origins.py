"""Finds out what each image of a batch was made from: which sample, and which part of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from torch import Tensor

from stateful_gpu_loader.datasets.lanes import MOST_SAMPLES
from stateful_gpu_loader.decoders import BatchDecoder, Decoder
from stateful_gpu_loader.engine.engine import Engine
from stateful_gpu_loader.engine.makers.choice import read_again
from stateful_gpu_loader.engine.makers.images import DrawnBatch, decode
from stateful_gpu_loader.engine.plan import Plan
from stateful_gpu_loader.engine.readers.calls import MOST_IMAGES
from stateful_gpu_loader.records import LaneTurn, Request, RestTurn
from stateful_gpu_loader.state.lane_cursor import LaneCursor
from stateful_gpu_loader.tools.previewed import Region, SamplePlace
from stateful_gpu_loader.transforms import Compose
from stateful_gpu_loader.transforms.motion import at_rest, inverse, one_after_the_other


@dataclass(frozen=True, eq=False)
class Origin:
    """What one image was made from; the fields are those of PreviewedSample."""

    place: SamplePlace
    image: Tensor | None = None
    target: Any = None
    region: Region | None = None
    parameters: tuple[tuple[str, dict[str, Any]], ...] = ()
    notes: tuple[str, ...] = ()


def origins_of(engine: Engine, n: int) -> tuple[list[Origin], str]:
    """Return the origins of the n images of the last batch, and what is to be said about them all.

    Raises:
        LoaderError: the batch does not come out again as it was.
    """
    plan = engine.plan
    name = type(plan.config.dataset).__name__
    places = _places(engine, n)
    known = [Origin(place) for place in places]
    if plan.source is None:
        if plan.transform is None:
            return known, f"{name} returns finished images: no original and no drawn numbers known."
        return known, "Own transform: no original and no drawn numbers known."
    if plan.has_worker_states:
        return known, f"{name} has a state, which reading the originals again would move."
    last = engine.passes.last
    if last is None:
        return known, ""
    recipes = plan.recipes
    batch = read_again(plan, last.request, last.bad, recipes or Compose([]))
    if len(batch.keys) != n:
        return known, (
            f"The batch has {n} images and was made from {len(batch.keys)}: no originals shown."
        )
    origins = [_origin(plan, batch, recipes, i) for i in range(n)]
    return origins, "Own transform: no drawn numbers known." if recipes is None else ""


def _places(engine: Engine, n: int) -> list[SamplePlace]:
    """What the request of the last batch tells of its n samples."""
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
    """The place that a sample's key tells; keys of lanes and calls hold two numbers in one."""
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
    """Where sample i comes from; recipes that do not tell where they move points are named."""
    header = batch.images[i].header
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
