"""Recomputes what the recipes drew for a batch, without making the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stateful_gpu_loader.datasets.source import OwnImage, Source
from stateful_gpu_loader.decoders import ImageHeader
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.makers.images import draw, header_of, open_for
from stateful_gpu_loader.engine.makers.replace_bad import BadSampleReplacer, Slot
from stateful_gpu_loader.records import EncodedSample, Request, SampleKey
from stateful_gpu_loader.transforms import Compose
from stateful_gpu_loader.transforms.compose import PipelineDraw


@dataclass(frozen=True, eq=False)
class DrawnBatch:
    """The n samples that a batch was made from, and what the recipes drew for them."""

    keys: list[SampleKey]
    samples: list[EncodedSample | OwnImage]
    """The samples as the source gives them, for :func:`~.images.decode`."""
    headers: list[ImageHeader]
    drawn: PipelineDraw


class DrawsMaker:
    """Takes the place of an image maker: reads images for their sizes, and draws.

    The numbers depend on the samples' keys and sizes alone, so they are those of the batch.

    Args:
        source: source of encoded images.
        recipes: the recipes that drew.
        policy: what was done about bad samples. It knows exactly those that the batch met, so the
            same ones are left out or replaced, and nothing needs to be decoded.
    """

    uses_global_generators = False

    def __init__(self, source: Source, *, recipes: Compose, policy: BadSamplePolicy) -> None:
        self._source = source
        self._recipes = recipes
        self._policy = policy

    def __call__(self, request: Request, check: Callable[[], None]) -> Any:
        replacer = BadSampleReplacer(
            self._policy, request, is_bad=lambda error: False, has_drawn=lambda slot: False
        )
        kept = replacer.settle(self._open)
        keys = [slot.key for slot in kept]
        samples = [slot.sample[0] for slot in kept]
        headers = [slot.sample[1] for slot in kept]
        drawn = draw(self._recipes, keys, headers)
        return replacer.answer(DrawnBatch(keys, samples, headers, drawn))

    def _open(self, slot: Slot) -> None:
        sample = open_for(self._source, slot.key)
        slot.sample = sample, header_of(sample, slot.key)
