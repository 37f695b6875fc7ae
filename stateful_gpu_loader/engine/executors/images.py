"""Batches of images from a source: read, decode, augment, straight into the batch.

Law 1: routing and numbers are functions of the bytes and the keys alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from stateful_gpu_loader.decoders import Decoder, ImageHeader, probe
from stateful_gpu_loader.engine.executors.samples import DRAWS_NOTHING, SampleExecutor, collate
from stateful_gpu_loader.errors import BadSample
from stateful_gpu_loader.records import EncodedSample, Request, SampleKey
from stateful_gpu_loader.sources.source import Source
from stateful_gpu_loader.transforms import Compose

Allocate = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
"""An uninitialised CPU tensor of a shape and dtype."""


class RecipeExecutor:
    """Recipes with explicit draws: touches no global generator, so it runs in any thread.

    Args:
        source: of encoded images.
        decoder: bytes to pixels.
        recipes: what happens to the pixels; may be empty.
        collate_fn: torch's default puts the images straight into one tensor and gives
            ``[images, targets]``; another one gets the samples ``(image, target)`` one by one.
        batched: False for ``batch_size=None``.
        allocate: where finished batches lie.
    """

    def __init__(
        self,
        source: Source,
        *,
        decoder: Decoder,
        recipes: Compose,
        collate_fn: Callable[[Any], Any],
        batched: bool,
        allocate: Allocate,
    ) -> None:
        self._source = source
        self._decoder = decoder
        self._recipes = recipes
        self._collate_fn = collate_fn
        self._batched = batched
        self._allocate = allocate
        self._stacked = batched and collate_fn is default_collate
        self.uses_global_generators = collate_fn not in DRAWS_NOTHING

    def __call__(self, request: Request, check: Callable[[], None]) -> Any:
        keys = request.keys()
        encoded = [read(self._source, key) for key in keys]
        headers = [header_of(sample, key) for sample, key in zip(encoded, keys, strict=True)]
        sizes = np.array([(header.height, header.width) for header in headers], dtype=np.int64)
        drawn = self._recipes.draw(request.seed, request.epoch, request.positions, sizes)
        targets = [sample.target for sample in encoded]
        rows = self._rows(drawn.sizes, keys)
        decoded = (
            (self._decoded(sample, header, key, check), drawn.sample(i))
            for i, (sample, header, key) in enumerate(zip(encoded, headers, keys, strict=True))
        )
        if rows is None:
            images = [self._recipes.apply(image, row).contiguous() for image, row in decoded]
            samples = list(zip(images, targets, strict=True))
            return collate(request, samples, self._collate_fn, batched=self._batched)
        # Nothing made in this mode is delivered: the batch was allocated outside.
        with torch.inference_mode():
            for out, (image, row) in zip(rows.unbind(0), decoded, strict=True):
                self._recipes.apply_into(image, row, out)
        return [rows, default_collate(targets)]

    def _decoded(
        self,
        sample: EncodedSample,
        header: ImageHeader,
        key: SampleKey,
        check: Callable[[], None],
    ) -> torch.Tensor:
        check()
        return decode(self._decoder, sample, header, key)

    def _rows(self, sizes: Any, keys: list[SampleKey]) -> torch.Tensor | None:
        if not self._stacked:
            return None
        height, width = sizes[0].tolist()
        if (sizes != sizes[0]).any():
            other = int(np.flatnonzero((sizes != sizes[0]).any(axis=1))[0])
            raise ValueError(
                f"the images of one batch differ in size: index {keys[0].index} gives "
                f"{height}x{width}, index {keys[other].index} gives "
                f"{sizes[other, 0]}x{sizes[other, 1]} (height x width). Remedy: end the recipes "
                "with one that fixes the size, such as RandomResizedCrop(224), or pass collate_fn"
            )
        return self._allocate((len(keys), 3, height, width), self._recipes.output_dtype)


class CallableExecutor(SampleExecutor):
    """A source whose images go through the user's own callable, one by one, keyed.

    ``transform`` sees the decoded image, uint8 [3, H, W], and not its target.
    """

    def __init__(
        self,
        source: Source,
        *,
        decoder: Decoder,
        transform: Callable[[torch.Tensor], Any],
        collate_fn: Callable[[Any], Any],
        batched: bool,
    ) -> None:
        super().__init__(source, transform=None, collate_fn=collate_fn, batched=batched)
        self._native = False
        self._source = source
        self._decoder = decoder
        self._image_transform = transform

    def fetch(self, key: SampleKey) -> tuple[Any, Any]:
        sample = read(self._source, key)
        image = decode(self._decoder, sample, header_of(sample, key), key)
        return self._image_transform(image), sample.target


def read(source: Source, key: SampleKey) -> EncodedSample:
    """Read one sample; a malformed record is a BadSample, an OSError stays one."""
    try:
        return source.read(key.index)
    except BadSample:
        raise
    except ValueError as error:
        raise _bad(f"{type(source).__name__}[{key.index}]", key, error) from error


def header_of(sample: EncodedSample, key: SampleKey) -> ImageHeader:
    """What the bytes say of the image, before they are decoded."""
    try:
        return probe(sample.data)
    except ValueError as error:
        raise _bad(sample.name, key, error) from error


def decode(
    decoder: Decoder, sample: EncodedSample, header: ImageHeader, key: SampleKey
) -> torch.Tensor:
    """uint8 [3, H, W] RGB."""
    try:
        return decoder.decode(sample.data, header)
    except ValueError as error:
        raise _bad(sample.name, key, error) from error


def _bad(name: str, key: SampleKey, error: ValueError) -> BadSample:
    return BadSample(
        name, index=key.index, position=key.position, epoch=key.epoch, reason=str(error)
    )
