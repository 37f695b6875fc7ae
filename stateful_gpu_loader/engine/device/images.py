"""Batches of images on the device: decoded in one step of the stage, augmented in the next.

The decoder of an image depends on its bytes alone. An image that the GPU decoder refuses is decoded
on the CPU; if that fails too it is bad, whatever batch it is in.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.decoders import ImageHeader
from stateful_gpu_loader.decoders.decoder import BatchDecoder
from stateful_gpu_loader.decoders.strided_image import Image, StridedImage
from stateful_gpu_loader.engine.device.moving import move_tensors
from stateful_gpu_loader.engine.device.place import Place
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy, is_bad_encoding
from stateful_gpu_loader.engine.makers.collate import collate_targets
from stateful_gpu_loader.engine.makers.encoded import EncodedBatch, OpenedImage
from stateful_gpu_loader.engine.makers.images import (
    bad_image,
    check_one_size,
    draw,
    header_of,
    moved_targets,
    read,
)
from stateful_gpu_loader.engine.makers.replace_bad import BadSampleReplacer, Slot
from stateful_gpu_loader.errors import BadSample
from stateful_gpu_loader.records import SampleKey
from stateful_gpu_loader.state.forks import fork_safe
from stateful_gpu_loader.transforms import Compose
from stateful_gpu_loader.transforms.compose import PipelineDraw


@dataclass(frozen=True, slots=True)
class _OnHost:
    """Pixels in the host's memory, which the second step copies to the device.

    A copy in the first step would keep the JPEG engines waiting, as the host waits for its stream
    before it calls them.
    """

    memory: torch.Tensor
    """uint8 [num_bytes] on the CPU; the pixels of several images may be in it."""
    start: int
    """First byte of the pixels, which are interleaved: [height, width, 3]."""
    header: ImageHeader

    @property
    def end(self) -> int:
        """First byte after the pixels."""
        return self.start + 3 * self.header.height * self.header.width


_Pixels = Image | _OnHost
"""Pixels of an image: uint8 [3, height, width] on the device, or bytes that wait to be copied."""


@dataclass(frozen=True, slots=True)
class _Decoded:
    """A decoded image between the two steps."""

    header: ImageHeader
    target: Any
    pixels: _Pixels
    has_moved: bool
    """Whether boxes and masks of the target have moved with the pixels."""


@dataclass(frozen=True, eq=False)
class DecodedBatch:
    """The result of the first step for one request."""

    keys: list[SampleKey]
    images: list[_Decoded]
    """The decoded images, in the order of ``keys``."""
    drawn: PipelineDraw
    replacer: BadSampleReplacer | None
    """Records the handling of bad samples; None if there were none."""


class DeviceImages:
    """Makes ``[images, targets]`` on the device from the encoded images of one request.

    Args:
        source: source of the images, to read replacements of bad samples.
        decoder: decoder of the images that the GPU takes.
        recipes: transforms of the pixels; may be empty.
        collate_fn: one that stacks images.
        policy: what is done about bad samples.
        place: the device; one of its private streams is current whenever a step is called.
    """

    def __init__(
        self,
        source: Source,
        *,
        decoder: BatchDecoder,
        recipes: Compose,
        collate_fn: Callable[[Any], Any],
        policy: BadSamplePolicy,
        place: Place,
    ) -> None:
        self._source = source
        self._decoder = decoder
        self._decoders = ThreadDecoders.of(decoder)
        self._recipes = recipes
        self._collate_fn = collate_fn
        self._policy = policy
        self._place = place

    def decode(self, batch: EncodedBatch) -> DecodedBatch:
        """Decode a batch, as the first step; each thread that calls it has a decoder of its own.

        Raises:
            BadSample: an image, or all that were tried in its place, cannot be decoded.
        """
        keys = batch.request.keys()
        pixels = self._decoded(batch, keys)
        images = [
            _Decoded(image.header, image.target, found, batch.drawn is not None)
            for image, found in zip(batch.images, pixels, strict=True)
            if image is not None and isinstance(found, _Pixels)
        ]
        if batch.drawn is not None and len(images) == len(keys):
            return DecodedBatch(keys, images, batch.drawn, None)
        if self._policy.is_active:
            return self._replaced(batch, pixels)
        raise next(found for found in pixels if isinstance(found, BadSample))

    def augment(self, batch: DecodedBatch) -> Any:
        """Augment and collate a batch, as the second step."""
        check_one_size(batch.drawn.sizes, batch.keys, self._source)
        pixels = self._on_device([image.pixels for image in batch.images])
        images = self._recipes.apply_batch(pixels, batch.drawn)
        targets = collate_targets(self._collate_fn, [image.target for image in batch.images])
        finished = [images, move_tensors(targets, self._place)]
        return finished if batch.replacer is None else batch.replacer.answer(finished)

    def _on_device(self, pixels: Sequence[_Pixels]) -> list[Image]:
        """Copy the pixels that are on the host, with one copy for each piece of memory."""
        found: list[Any] = list(pixels)
        waiting: dict[int, list[int]] = {}
        for i, each in enumerate(pixels):
            if isinstance(each, _OnHost):
                waiting.setdefault(id(each.memory), []).append(i)
        for numbers in waiting.values():
            numbers.sort(key=lambda i: found[i].start)
            parts = [found[i] for i in numbers]
            sizes, at = [], parts[0].start
            for part in parts:
                sizes += [part.start - at, part.end - part.start]
                at = part.end
            # What lies between the images is copied as well: many small copies take longer.
            copied = self._place.copy_in(parts[0].memory[parts[0].start : at])
            for i, part, data in zip(numbers, parts, copied.split(sizes)[1::2], strict=True):
                found[i] = StridedImage.interleaved(data, part.header.height, part.header.width)
        return found

    def _decoded(
        self, batch: EncodedBatch, keys: list[SampleKey]
    ) -> list[_Pixels | BadSample | None]:
        """Return the pixels of each image, or why there are none; None for images not opened."""
        pixels: list[_Pixels | BadSample | None] = [None] * len(keys)
        of_gpu: list[tuple[int, OpenedImage, torch.Tensor]] = []
        opened = zip(batch.images, batch.parts(), batch.starts(), strict=True)
        for i, (image, data, start) in enumerate(opened):
            if image is not None and image.is_decoded:
                pixels[i] = _OnHost(batch.arena, start + image.pixels_start, image.header)
            elif image is not None:
                of_gpu.append((i, image, data))
        decoded = self._decode(
            [data for _, _, data in of_gpu], [image.header for _, image, _ in of_gpu]
        )
        for (i, image, _), found in zip(of_gpu, decoded, strict=True):
            if isinstance(found, ValueError):
                pixels[i] = bad_image(image.name, keys[i], found)
            else:
                pixels[i] = found
        return pixels

    def _decode(
        self, data: list[torch.Tensor], headers: list[ImageHeader]
    ) -> list[_Pixels | ValueError]:
        """Decode images on the GPU, and on the CPU those that it refuses.

        The host waits for the stream before, because work in its queue may still read memory that
        is allocated now, and after, because the decoder may still read the bytes, which are
        about to be freed.
        """
        if not data:
            return []
        self._place.settle()
        decoder = self._decoders.for_this_thread(self._decoder)
        decoded = decoder.decode_batch(data, headers)
        self._place.settle()
        return [
            self._decode_on_cpu(data[i], headers[i]) if isinstance(found, ValueError) else found
            for i, found in enumerate(decoded)
        ]

    def _decode_on_cpu(self, data: torch.Tensor, header: ImageHeader) -> _OnHost | ValueError:
        try:
            pixels = self._decoder.cpu.decode(data, header)
        except ValueError as error:
            return error
        # Decoders return interleaved colours, so this is a view and not a copy.
        return _OnHost(pixels.permute(1, 2, 0).reshape(-1), 0, header)

    def _replaced(
        self, batch: EncodedBatch, decoded: Sequence[_Pixels | BadSample | None]
    ) -> DecodedBatch:
        """Replace or leave out bad samples one by one, as the workers of a CPU loader do."""
        replacer = BadSampleReplacer(
            self._policy, batch.request, is_bad=is_bad_encoding, has_drawn=lambda slot: False
        )
        for slot, image, pixels in zip(replacer.kept, batch.images, decoded, strict=True):
            if isinstance(pixels, _Pixels) and image is not None:
                slot.sample = _Decoded(image.header, image.target, pixels, batch.drawn is not None)
        kept = replacer.settle(self._make)
        if unmoved := [slot for slot in kept if not slot.sample.has_moved]:
            self._move(unmoved)
        drawn = self._drawn(kept)
        return DecodedBatch(
            [slot.key for slot in kept], [slot.sample for slot in kept], drawn, replacer
        )

    def _drawn(self, slots: list[Slot]) -> PipelineDraw:
        headers = [slot.sample.header for slot in slots]
        return draw(self._recipes, [slot.key for slot in slots], headers)

    def _move(self, slots: list[Slot]) -> None:
        targets = moved_targets(
            self._source,
            self._recipes,
            [slot.key for slot in slots],
            [slot.sample.target for slot in slots],
            [slot.sample.header for slot in slots],
            self._drawn(slots),
        )
        for slot, target in zip(slots, targets, strict=True):
            slot.sample = replace(slot.sample, target=target, has_moved=True)

    def _make(self, slot: Slot) -> None:
        """Read and decode a single sample; the result is the same, to the bit, as in a batch."""
        if slot.sample is not None:
            return
        sample = read(self._source, slot.key)
        header = header_of(sample, slot.key)
        if self._decoder.takes(header, sample.data):
            (pixels,) = self._decode([sample.data], [header])
        else:
            pixels = self._decode_on_cpu(sample.data, header)
        if isinstance(pixels, ValueError):
            raise bad_image(sample.name, slot.key, pixels) from pixels
        slot.sample = _Decoded(header, sample.target, pixels, has_moved=False)


class ThreadDecoders:
    """Copies of one decoder, which give the same pixels, for the life of the threads that use them.

    The first thread uses the decoder itself. Another one gets it when the first has ended. A thread
    that hangs keeps its decoder.
    """

    def __init__(self) -> None:
        self._own = threading.local()
        self._user: threading.Thread | None = None
        """Thread that uses the decoder itself."""
        self._lock = fork_safe(threading.RLock())

    @classmethod
    def of(cls, decoder: BatchDecoder) -> ThreadDecoders:
        """Return the decoders of all threads that share ``decoder``, from one pass to the next."""
        with _lock:
            return _all.setdefault(decoder, cls())

    def for_this_thread(self, decoder: BatchDecoder) -> BatchDecoder:
        """Return the calling thread's decoder.

        Args:
            decoder: the one that the copies are made of.
        """
        here = threading.current_thread()
        with self._lock:
            if self._user is None or not self._user.is_alive():
                self._user = None if hasattr(self._own, "copied") else here
            if self._user is here:
                return decoder  # no reference to it is kept
        if not hasattr(self._own, "copied"):
            self._own.copied = copy.copy(decoder)
        copied: BatchDecoder = self._own.copied
        return copied


_all: weakref.WeakKeyDictionary[BatchDecoder, ThreadDecoders] = weakref.WeakKeyDictionary()
_lock = fork_safe(threading.RLock())
