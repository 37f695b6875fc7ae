"""Batches of images from a source: read, decoded and augmented, straight into the batch.

The decoder of an image and the recipes' numbers depend on its bytes and key alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from stateful_gpu_loader.datasets.source import (
    OwnImage,
    Source,
    image_header,
    open_image,
    read_into,
)
from stateful_gpu_loader.datasets.storage.memory import Memory, Scratch, new_memory
from stateful_gpu_loader.decoders import Decoder, ImageHeader
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy, is_bad_encoding
from stateful_gpu_loader.engine.makers.collate import (
    DRAWS_NOTHING,
    FIXED_SIZE,
    STACKS_IMAGES,
    collate_targets,
    name_of,
)
from stateful_gpu_loader.engine.makers.own_generators import SampleGenerators
from stateful_gpu_loader.engine.makers.replace_bad import BadSampleReplacer, Slot
from stateful_gpu_loader.engine.makers.samples import SampleMaker, collate
from stateful_gpu_loader.engine.stats import stage
from stateful_gpu_loader.errors import BadSample
from stateful_gpu_loader.records import EncodedSample, IndexArray, Request, SampleKey
from stateful_gpu_loader.transforms import Compose
from stateful_gpu_loader.transforms.compose import PipelineDraw

T = TypeVar("T")
Allocate = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
"""Returns an uninitialised CPU tensor of a shape and dtype."""


class ImageMaker:
    """Makes batches of images with recipes; uses no global generator, so it runs in any thread.

    Args:
        source: source of encoded images.
        decoder: decoder of the images.
        recipes: transforms of the pixels; may be empty.
        collate_fn: torch's default and :func:`ragged_collate` put the images straight into one
            tensor and give ``[images, targets]``; another one gets a list of samples ``(image,
            target)``.
        batched: False for ``batch_size=None``.
        allocate: allocates memory for finished batches.
        policy: what is done about bad samples.
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
        policy: BadSamplePolicy,
    ) -> None:
        self._source = source
        self._decoder = decoder
        self._recipes = recipes
        self._collate_fn = collate_fn
        self._batched = batched
        self._allocate = allocate
        self._stacked = batched and collate_fn in STACKS_IMAGES
        self._policy = policy
        self.uses_global_generators = collate_fn not in DRAWS_NOTHING

    def __call__(self, request: Request, check: Callable[[], None]) -> Any:
        replacer = BadSampleReplacer(
            self._policy, request, is_bad=is_bad_encoding, has_drawn=lambda slot: False
        )
        with stage("read"):
            replacer.settle(self._open)
        try:
            images, targets = self._filled(replacer, check)
        except ValueError as error:
            if isinstance(error, BadSample) or not replacer.replaces:
                raise
            # The recipes refuse a size, which may come from a damaged header. So all images are
            # decoded first to find the bad ones; otherwise each is decoded when its turn comes.
            replacer.settle(partial(self._judge, check))
            images, targets = self._filled(replacer, check)
        if isinstance(images, torch.Tensor):
            with stage("collate"):
                batch = [images, collate_targets(self._collate_fn, targets)]
            return replacer.answer(batch)
        samples = list(zip(images, targets, strict=True))
        return replacer.answer(collate(request, samples, self._collate_fn, batched=self._batched))

    def _rows(self, sizes: IndexArray, keys: list[SampleKey]) -> torch.Tensor | None:
        if not self._stacked:
            return None
        check_one_size(sizes, keys, self._source)
        height, width = sizes[0].tolist()
        dtype, memory_format = self._recipes.output_dtype, self._recipes.memory_format
        return empty_rows(self._allocate, (len(keys), height, width), dtype, memory_format)

    def _filled(
        self, replacer: BadSampleReplacer, check: Callable[[], None]
    ) -> tuple[torch.Tensor | list[torch.Tensor], list[Any]]:
        """Return the images and targets of all samples that can be decoded."""
        kept = replacer.kept
        keys = [slot.key for slot in kept]
        with stage("augment"):
            drawn = self._draw(kept)
            moved = self._moved(kept, drawn)
        rows = self._rows(drawn.sizes, keys)
        images: list[torch.Tensor] = []
        targets: list[Any] = []
        # An image that is copied into the batch leaves its own memory to the next one.
        memory = new_memory if rows is None else Scratch()
        pixels_of = partial(self._decode, check, memory)
        # No tensor made in this mode is delivered: the batch was allocated outside.
        with torch.inference_mode(rows is not None):
            places = [] if rows is None else rows.unbind(0)
            for i, (slot, key) in enumerate(zip(kept, keys, strict=True)):
                if not replacer.fill(slot, pixels_of):
                    continue
                numbers = drawn.sample(i)
                if slot.key is not key:
                    # Only this sample's numbers change, as they depend on its position and size
                    # alone. If the recipes give it another size, apply_into refuses.
                    own = self._draw([slot])
                    numbers, moved[i : i + 1] = own.sample(0), self._moved([slot], own)
                image, slot.sample.pixels = slot.sample.pixels, None
                with stage("augment"):
                    if rows is None:
                        images.append(self._recipes.apply(image, numbers).contiguous())
                    else:
                        self._recipes.apply_into(image, numbers, places[len(targets)])
                targets.append(moved[i])
        if not targets:
            replacer.settle(partial(self._judge, check))
            return self._filled(replacer, check)
        return images if rows is None else rows[: len(targets)], targets

    def _draw(self, slots: list[Slot]) -> PipelineDraw:
        headers = [slot.sample.header for slot in slots]
        return draw(self._recipes, [slot.key for slot in slots], headers)

    def _moved(self, slots: list[Slot], drawn: PipelineDraw) -> list[Any]:
        return moved_targets(
            self._source,
            self._recipes,
            [slot.key for slot in slots],
            [slot.sample.encoded.target for slot in slots],
            [slot.sample.header for slot in slots],
            drawn,
        )

    def _open(self, slot: Slot) -> None:
        if slot.sample is None:
            encoded = open_for(self._source, slot.key)
            slot.sample = _Opened(encoded, header_of(encoded, slot.key))

    def _decode(self, check: Callable[[], None], memory: Memory, slot: Slot) -> None:
        self._open(slot)
        check()
        opened = slot.sample
        with stage("decode"):
            opened.pixels = decode(self._decoder, opened.encoded, opened.header, slot.key, memory)

    def _judge(self, check: Callable[[], None], slot: Slot) -> None:
        self._decode(check, new_memory, slot)
        slot.sample.pixels = None  # keeping a whole batch of decoded images would need much memory


def empty_rows(
    allocate: Allocate,
    size: tuple[int, int, int],
    dtype: torch.dtype,
    memory_format: torch.memory_format,
) -> torch.Tensor:
    """Return an uninitialised batch of images, [n, 3, height, width], in this layout.

    Args:
        size: n, height and width.
    """
    num_images, height, width = size
    if memory_format is torch.channels_last:
        return allocate((num_images, height, width, 3), dtype).permute(0, 3, 1, 2)
    return allocate((num_images, 3, height, width), dtype)


@dataclass
class _Opened:
    """An image that was read and possibly decoded."""

    encoded: EncodedSample | OwnImage
    header: ImageHeader
    pixels: torch.Tensor | None = None
    """Pixels, uint8 [3, height, width], until they are in the batch."""


def draw(recipes: Compose, keys: list[SampleKey], headers: list[ImageHeader]) -> PipelineDraw:
    """Draw the recipes' numbers for images of one request.

    Args:
        keys: keys of the images, at least one.
        headers: headers of the same n images.

    Raises:
        ValueError: an image is too small for a recipe.
    """
    positions = np.array([key.position for key in keys], dtype=np.int64)
    return recipes.draw(keys[0].seed, keys[0].epoch, positions, _sizes_of(headers))


def moved_targets(
    source: Source,
    recipes: Compose,
    keys: list[SampleKey],
    targets: list[Any],
    headers: list[ImageHeader],
    drawn: PipelineDraw,
) -> list[Any]:
    """Return the targets of n images, with boxes and masks moved as the recipes move the pixels.

    Args:
        source: source of the images.
        keys: keys of the images that were read.
        targets, headers: targets and headers as they are in the source.
        drawn: numbers drawn for the same n images.
    """
    if not source.has_spatial_targets:
        return targets
    motions = recipes.motion(drawn, _sizes_of(headers))
    return [
        source.move_target(key.index, target, motion, (height, width))
        for key, target, motion, (height, width) in zip(
            keys, targets, motions, drawn.sizes.tolist(), strict=True
        )
    ]


def _sizes_of(headers: list[ImageHeader]) -> IndexArray:
    return np.array([(header.height, header.width) for header in headers], dtype=np.int64)


def check_one_size(sizes: IndexArray, keys: list[SampleKey], source: Source) -> None:
    """Refuse a batch whose images cannot be stacked.

    Args:
        sizes: height and width in pixels, int64 [n, 2].
        keys: keys of the same images.
        source: source of the images.

    Raises:
        ValueError: the images differ in size.
    """
    if (sizes != sizes[0]).any():
        other = int(np.flatnonzero((sizes != sizes[0]).any(axis=1))[0])
        raise ValueError(
            f"the images of one batch differ in size: {name_of(source, keys[0].index)} gives "
            f"{sizes[0, 0]}x{sizes[0, 1]}, {name_of(source, keys[other].index)} gives "
            f"{sizes[other, 0]}x{sizes[other, 1]} (height x width). {FIXED_SIZE.format('recipes')}"
        )


class CallableMaker(SampleMaker):
    """Images of a source with the user's own transform, applied one by one with seeded generators.

    ``transform`` gets the decoded image, uint8 [3, H, W], and not its target.
    """

    is_bad = staticmethod(is_bad_encoding)

    def __init__(
        self,
        source: Source,
        *,
        decoder: Decoder,
        transform: Callable[[torch.Tensor], Any],
        collate_fn: Callable[[Any], Any],
        batched: bool,
        policy: BadSamplePolicy,
    ) -> None:
        super().__init__(
            source, transform=None, collate_fn=collate_fn, batched=batched, policy=policy
        )
        self._native = False
        self._source = source
        self._decoder = decoder
        self._image_transform = transform
        self._generators = SampleGenerators(source, transform)

    def fetch(self, key: SampleKey) -> tuple[Any, Any]:
        sample = open_for(self._source, key)
        header = header_of(sample, key)
        with stage("decode"):
            image = decode(self._decoder, sample, header, key)
        with stage("augment"):
            return self._image_transform(image), sample.target


def read(source: Source, key: SampleKey, memory: Memory = new_memory) -> EncodedSample:
    """Read one sample, into ``memory`` if the source can.

    A malformed record is raised as a BadSample, an OSError as it is.
    """
    return _named(source, key, lambda: read_into(source, key.index, memory))


def open_for(source: Source, key: SampleKey) -> EncodedSample | OwnImage:
    """Read one sample, or open it for its source to decode; errors as of :func:`read`."""
    return _named(source, key, lambda: open_image(source, key.index))


def _named(source: Source, key: SampleKey, act: Callable[[], T]) -> T:
    try:
        return act()
    except BadSample:
        raise
    except ValueError as error:
        raise bad_image(f"{type(source).__name__}[{key.index}]", key, error) from error


def header_of(
    sample: EncodedSample | OwnImage, key: SampleKey, view: memoryview | None = None
) -> ImageHeader:
    """The header of an image, parsed from its bytes; ``view`` shows the same ones."""
    try:
        return image_header(sample, view)
    except ValueError as error:
        raise bad_image(sample.name, key, error) from error


def decode(
    decoder: Decoder,
    sample: EncodedSample | OwnImage,
    header: ImageHeader,
    key: SampleKey,
    memory: Memory = new_memory,
) -> torch.Tensor:
    """Decode an image to RGB, uint8 [3, H, W]; it may lie in ``memory``."""
    try:
        if isinstance(sample, OwnImage):
            return sample.make(memory)
        return decoder.decode(sample.data, header)
    except ValueError as error:
        raise bad_image(sample.name, key, error) from error


def bad_image(name: str, key: SampleKey, error: ValueError) -> BadSample:
    """Return the BadSample for a ValueError of a reader or decoder."""
    return BadSample(
        name, index=key.index, position=key.position, epoch=key.epoch, reason=str(error)
    )
