"""Batches of images from a source: read, decoded and augmented, straight into the batch.

The decoder of an image and the recipes' numbers depend only on its bytes and key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from stateful_gpu_loader.datasets.source import OwnImage, Source, image_header, read_into
from stateful_gpu_loader.datasets.storage.memory import Arena, Memory, Scratch, new_memory
from stateful_gpu_loader.decoders import Decoder, ImageHeader
from stateful_gpu_loader.engine.makers.bad_sample_policy import (
    BadSamplePolicy,
    BadSampleReplacer,
    Slot,
    is_bad_encoding,
)
from stateful_gpu_loader.engine.makers.collate import (
    DRAWS_NOTHING,
    FIXED_SIZE,
    STACKS_IMAGES,
    collate_targets,
    name_of,
)
from stateful_gpu_loader.engine.makers.own_generators import SampleGenerators
from stateful_gpu_loader.engine.makers.samples import SampleMaker, collate
from stateful_gpu_loader.engine.stats import stage
from stateful_gpu_loader.errors import BadSample
from stateful_gpu_loader.records import EncodedSample, IndexArray, Request, SampleKey
from stateful_gpu_loader.transforms import Compose
from stateful_gpu_loader.transforms.compose import PipelineDraw, Rows
from stateful_gpu_loader.transforms.cut import Cut

_VALUES_AT_ONCE = 1 << 18
"""Bytes of pixels that recipes are applied to together, in a cache."""

Allocate = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
"""Returns an uninitialised CPU tensor of a shape and dtype."""


class _Drawn(NamedTuple):
    key: SampleKey
    numbers: Rows
    target: Any
    """The sample's target, moved with the pixels."""


class ImageMaker:
    """Makes batches of images with recipes; uses no global generator, so it runs in any thread.

    Args:
        recipes: transforms of the pixels; may be empty.
        collate_fn: torch's default and :func:`ragged_collate` put the images straight into one
            tensor and give ``[images, targets]``; any other function gets a list of samples
            ``(image, target)``.
        batched: False for ``batch_size=None``.
        allocate: allocates memory for finished batches.
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
        self._dtype, self._memory_format = recipes.output_dtype, recipes.memory_format
        self._policy = policy
        self._pixel_size = None if source.has_spatial_targets else source._pixel_size()
        self.uses_global_generators = collate_fn not in DRAWS_NOTHING

    def __call__(self, request: Request, check: Callable[[], None]) -> Any:
        batch = self._from_pixels(request, check)
        if batch is not None:
            return batch
        replacer = BadSampleReplacer(self._policy, request)
        with stage("read"):
            replacer.fill_all(self._open)
        try:
            images, targets = self._filled(replacer, check)
        except ValueError as error:
            if isinstance(error, BadSample) or not replacer.replaces:
                raise
            # A damaged header may claim the refused size, so all images are decoded first to find
            # the bad ones.
            replacer.fill_all(partial(self._decode, check, Scratch()))
            images, targets = self._filled(replacer, check)
        if isinstance(images, torch.Tensor):
            with stage("collate"):
                batch = [images, collate_targets(self._collate_fn, targets)]
            return replacer.answer(batch)
        samples = list(zip(images, targets, strict=True))
        return replacer.answer(collate(request, samples, self._collate_fn, batched=self._batched))

    def _from_pixels(self, request: Request, check: Callable[[], None]) -> list[Any] | None:
        """Return the batch of a source that gives many images at once, none of which can be bad.

        None if the other path must make it, with the same pixels.
        """
        size = self._pixel_size
        if not self._stacked or size is None or self._policy.knows_any(request.index_list()):
            return None
        indices = np.array(request.index_list(), dtype=np.int64)
        with stage("augment"):
            sizes = np.tile(np.array(size, dtype=np.int64), (len(indices), 1))
            drawn = self._recipes.draw(request.seed, request.epoch, request.positions, sizes)
        if not drawn.keeps_one_size:
            return None
        shape = (len(indices), *drawn.sizes[0].tolist())
        rows = empty_rows(self._allocate, shape, self._dtype, self._memory_format)
        targets: list[Any] = []
        step = max(1, _VALUES_AT_ONCE // (3 * size[0] * size[1]))
        # The batch was allocated outside this mode.
        with torch.inference_mode():
            for start in range(0, len(indices), step):
                check()
                part = slice(start, start + step)
                with stage("read"):
                    pixels, part_targets = self._source._read_pixels(indices[part])
                with stage("augment"):
                    self._recipes.apply_stack_into(pixels, drawn.take(part), rows[part])
                targets += part_targets
        with stage("collate"):
            return [rows, collate_targets(self._collate_fn, targets)]

    def _filled(
        self, replacer: BadSampleReplacer, check: Callable[[], None]
    ) -> tuple[torch.Tensor | list[torch.Tensor], list[Any]]:
        """Return the images and targets of all samples that can be decoded."""
        kept = list(replacer.kept)
        keys = [slot.key for slot in kept]
        rows: torch.Tensor | None = None
        images: list[torch.Tensor] = []
        targets: list[Any] = []
        with stage("augment"):
            drawn, moved = draw(self._recipes, keys, [slot.sample for slot in kept], self._source)
        if self._stacked:
            check_one_size(drawn.sizes, keys, self._source)
            size = (len(keys), *drawn.sizes[0].tolist())
            rows = empty_rows(self._allocate, size, self._dtype, self._memory_format)
        # A copied image leaves its memory to the next one.
        memory = new_memory if rows is None else Scratch()
        # The batch was allocated outside this mode.
        with torch.inference_mode(rows is not None):
            places = [] if rows is None else rows.unbind(0)
            for i, (slot, key) in enumerate(zip(kept, keys, strict=True)):
                own = _Drawn(key, drawn.rows[i], moved[i])
                decoded = replacer.fill(slot, partial(self._decode_drawn, check, memory, own))
                if decoded is None:
                    continue
                image, num_cut, own = decoded
                with stage("augment"):
                    if rows is None:
                        made = self._recipes.apply(image, own.numbers, num_cut)
                        images.append(made.contiguous())
                    else:
                        place = places[len(targets)]
                        self._recipes.apply_into(image, own.numbers, place, num_cut)
                targets.append(own.target)
        if not targets:
            replacer.fill_all(partial(self._decode, check, Scratch()))
            return self._filled(replacer, check)
        return images if rows is None else rows[: len(targets)], targets

    def _open(self, slot: Slot) -> None:
        slot.sample = opened(self._source, slot.key)

    def _decode(self, check: Callable[[], None], memory: Memory, slot: Slot) -> torch.Tensor:
        self._open_replacement(check, slot)
        with stage("decode"):
            return decode(self._decoder, slot.sample, slot.key, memory)

    def _decode_drawn(
        self, check: Callable[[], None], memory: Memory, drawn: _Drawn, slot: Slot
    ) -> tuple[torch.Tensor, int, _Drawn]:
        """Decode the part of an image that the recipes need.

        Returns:
            the image, or its cut, with ``num_cut`` of :meth:`Compose.apply`; and its drawn numbers.
        """
        self._open_replacement(check, slot)
        image = slot.sample
        if slot.key is not drawn.key:
            # Only this sample's numbers change. If the recipes give it another size, apply_into
            # refuses.
            with stage("augment"):
                own, (target,) = draw(self._recipes, [slot.key], [image], self._source)
            drawn = _Drawn(slot.key, own.rows[0], target)
        with stage("decode"):
            if isinstance(image.sample, OwnImage):
                return decode(self._decoder, image, slot.key, memory), 0, drawn
            header = image.header
            cut, num_cut = self._recipes.cut((header.height, header.width), drawn.numbers)
            return decode_cut(self._decoder, image, slot.key, cut), num_cut, drawn

    def _open_replacement(self, check: Callable[[], None], slot: Slot) -> None:
        if slot.sample is None:
            with stage("read"):
                self._open(slot)
        check()


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


class OpenedImage(NamedTuple):
    """An image that was read, with its parsed header."""

    sample: Any
    """The image from its source: an EncodedSample, or an OwnImage if no arena was passed."""
    header: ImageHeader
    target: Any


def opened(source: Source, key: SampleKey, arena: Arena | None = None) -> OpenedImage:
    """Read one sample and parse its header.

    A malformed record or header is raised as a BadSample, an OSError unchanged.

    Args:
        arena: memory to which the bytes may be appended. With None the source makes the pixels.
    """
    sample: EncodedSample | OwnImage | None = None
    view = None
    try:
        if arena is None:
            sample = source.open_for_loader(key.index)
        else:
            start = arena.end
            sample = read_into(source, key.index, partial(arena.take_from, start))
            if arena.holds(start, sample.data):
                # Reading the header from the arena saves 1 us.
                view = arena.view(start, sample.data.numel())
        return OpenedImage(sample, image_header(sample, view), sample.target)
    except BadSample:
        raise
    except ValueError as error:
        name = f"{type(source).__name__}[{key.index}]" if sample is None else sample.name
        raise bad_image(name, key, error) from error


class HasHeader(Protocol):
    """An image with its header and target."""

    @property
    def header(self) -> ImageHeader: ...

    @property
    def target(self) -> Any: ...


def draw(
    recipes: Compose,
    keys: list[SampleKey],
    images: Sequence[HasHeader],
    source: Source | None = None,
) -> tuple[PipelineDraw, list[Any]]:
    """Draw the recipes' numbers for images of one request, and move their targets.

    Args:
        keys: keys of the images that were read, at least one.
        images: the same n images.
        source: source of the images; boxes and masks of its targets move with the pixels. With None
            no targets move.

    Returns:
        the numbers, and the n targets.

    Raises:
        ValueError: an image is too small for a recipe.
    """
    positions = np.array([key.position for key in keys], dtype=np.int64)
    headers = [image.header for image in images]
    sizes = np.array([(header.height, header.width) for header in headers], dtype=np.int64)
    drawn = recipes.draw(keys[0].seed, keys[0].epoch, positions, sizes)
    targets = [image.target for image in images]
    if source is not None and source.has_spatial_targets:
        motions = recipes.motion(drawn, sizes)
        targets = [
            source.move_target(key.index, target, motion, (height, width))
            for key, target, motion, (height, width) in zip(
                keys, targets, motions, drawn.sizes.tolist(), strict=True
            )
        ]
    return drawn, targets


def decode(
    decoder: Decoder, image: OpenedImage, key: SampleKey, memory: Memory = new_memory
) -> torch.Tensor:
    """Decode an image to RGB, uint8 [3, H, W]; it may lie in ``memory``."""
    sample = image.sample
    try:
        if isinstance(sample, OwnImage):
            return sample.make(memory)
        return decoder.decode(sample.data, image.header)
    except ValueError as error:
        raise bad_image(sample.name, key, error) from error


def decode_cut(decoder: Decoder, image: OpenedImage, key: SampleKey, cut: Cut) -> torch.Tensor:
    """Decode the kept part of an image, except an OwnImage; a decoder may scale it."""
    sample = image.sample
    try:
        return decoder.decode_part(sample.data, image.header, cut.box, cut.resized)
    except ValueError as error:
        raise bad_image(sample.name, key, error) from error


def bad_image(name: str, key: SampleKey, error: ValueError) -> BadSample:
    """Return the BadSample for a ValueError of a reader or decoder."""
    return BadSample(
        name, index=key.index, position=key.position, epoch=key.epoch, reason=str(error)
    )


def check_one_size(sizes: IndexArray, keys: list[SampleKey], source: Source) -> None:
    """Refuse a batch whose images cannot be stacked.

    Args:
        sizes: height and width in pixels, int64 [n, 2].
        keys: keys of the same images.

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

    ``transform`` gets the decoded image, uint8 [3, H, W], without its target.
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
        image = opened(self._source, key)
        with stage("decode"):
            pixels = decode(self._decoder, image, key)
        with stage("augment"):
            return self._image_transform(pixels), image.target


@dataclass(frozen=True, eq=False)
class DrawnBatch:
    """The n samples that a batch was made from, and their draws."""

    keys: list[SampleKey]
    images: list[OpenedImage]
    drawn: PipelineDraw


class DrawsMaker:
    """Replaces an image maker: reads images for their sizes, and draws.

    The numbers depend only on the samples' keys and sizes.

    Args:
        policy: policy for bad samples, which knows exactly the batch's bad samples, so nothing is
            decoded.
    """

    uses_global_generators = False

    def __init__(self, source: Source, *, recipes: Compose, policy: BadSamplePolicy) -> None:
        self._source = source
        self._recipes = recipes
        self._policy = policy

    def __call__(self, request: Request, check: Callable[[], None]) -> Any:
        replacer = BadSampleReplacer(self._policy, request, is_bad=lambda error: False)
        kept = replacer.fill_all(self._open)
        keys, images = [slot.key for slot in kept], [slot.sample for slot in kept]
        drawn, _ = draw(self._recipes, keys, images)
        return replacer.answer(DrawnBatch(keys, images, drawn))

    def _open(self, slot: Slot) -> None:
        slot.sample = opened(self._source, slot.key)
