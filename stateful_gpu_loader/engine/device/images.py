"""Batches of images on the device: decoded in one step of the stage, augmented in the next.

The decoder of an image depends only on its bytes. An image that the GPU decoder refuses is decoded
on the CPU, or else is bad.
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
from stateful_gpu_loader.datasets.storage.memory import Arena
from stateful_gpu_loader.decoders import ImageHeader
from stateful_gpu_loader.decoders.decoder import BatchDecoder, Image, StridedImage
from stateful_gpu_loader.engine.device.moving import move_tensors
from stateful_gpu_loader.engine.device.place import Place
from stateful_gpu_loader.engine.makers.bad_sample_policy import (
    BadSamplePolicy,
    BadSampleReplacer,
    Slot,
)
from stateful_gpu_loader.engine.makers.collate import collate_targets
from stateful_gpu_loader.engine.makers.encoded import EncodedBatch, EncodedImage
from stateful_gpu_loader.engine.makers.images import bad_image, check_one_size, draw, opened
from stateful_gpu_loader.engine.makers.memory import empty_host
from stateful_gpu_loader.engine.makers.ready_batches import all_bad
from stateful_gpu_loader.engine.pipeline import SKIPPED, Answer
from stateful_gpu_loader.errors import BadSample
from stateful_gpu_loader.state.forks import fork_safe
from stateful_gpu_loader.transforms import Compose
from stateful_gpu_loader.transforms.compose import PipelineDraw


@dataclass(frozen=True, slots=True)
class _OnHost:
    """Pixels in the host's memory, which the second step copies to the device.

    A copy in the first step would delay the JPEG engines, for which the host waits for the stream.
    """

    memory: torch.Tensor
    """uint8 [num_bytes] on the CPU; it may hold the pixels of several images."""
    start: int
    """First byte of the pixels, which are interleaved: [height, width, 3]."""
    header: ImageHeader

    @property
    def end(self) -> int:
        """First byte after the pixels."""
        return self.start + 3 * self.header.height * self.header.width


_Pixels = Image | _OnHost
"""Pixels of an image: uint8 [3, height, width] on the device, or bytes to be copied."""


@dataclass(frozen=True, slots=True)
class _Decoded:
    """A decoded image between the two steps."""

    header: ImageHeader
    target: Any
    pixels: _Pixels


@dataclass(frozen=True, eq=False)
class DecodedBatch:
    """The result of the first step for one request."""

    slots: list[Slot]
    """Slots of the batch, with decoded images and moved targets."""
    drawn: PipelineDraw
    replacer: BadSampleReplacer
    """Records how bad samples were handled."""


class DeviceImages:
    """Makes ``[images, targets]`` on the device from the encoded images of one request.

    Args:
        source: source of the images, to read replacements of bad samples.
        decoder: decoder of the images that the GPU takes.
        recipes: transforms of the pixels; may be empty.
        collate_fn: a function that stacks images.
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
        """Decode a batch, as the first step, with the calling thread's own decoder.

        Raises:
            BadSample: an image and all its replacements could not be decoded.
        """
        replacer = BadSampleReplacer(self._policy, batch.request)
        slots = list(replacer.kept)
        decoded = self._decoded(batch, slots)
        for slot, sample in zip(slots, decoded, strict=True):
            slot.sample = sample
        # Most batches have no bad images, and a check takes 0.5 us an image.
        is_whole = all(isinstance(sample, _Decoded) for sample in decoded)
        kept = slots if is_whole else replacer.fill_all(self._make)
        drawn = batch.drawn
        unmoved = kept if drawn is None else [slot for slot in kept if slot.found]
        if unmoved:
            keys, images = [slot.key for slot in unmoved], [slot.sample for slot in unmoved]
            _, targets = draw(self._recipes, keys, images, self._source)
            for slot, image, target in zip(unmoved, images, targets, strict=True):
                slot.sample = replace(image, target=target)
        if drawn is None or unmoved or len(kept) < len(slots):
            keys, images = [slot.key for slot in kept], [slot.sample for slot in kept]
            drawn, _ = draw(self._recipes, keys, images)
        return DecodedBatch(kept, drawn, replacer)

    def augment(self, batch: DecodedBatch) -> Any:
        """Augment and collate a batch, as the second step."""
        check_one_size(batch.drawn.sizes, [slot.key for slot in batch.slots], self._source)
        pixels = self._on_device([slot.sample.pixels for slot in batch.slots])
        images = self._recipes.apply_batch(pixels, batch.drawn)
        targets = collate_targets(self._collate_fn, [slot.sample.target for slot in batch.slots])
        return batch.replacer.answer([images, move_tensors(targets, self._place)])

    def _on_device(self, pixels: Sequence[_Pixels]) -> list[Image]:
        """Copy the pixels on the host, with one copy for each piece of memory."""
        images: list[Any] = list(pixels)
        waiting: dict[int, list[int]] = {}
        for i, image in enumerate(pixels):
            if isinstance(image, _OnHost):
                waiting.setdefault(id(image.memory), []).append(i)
        for numbers in waiting.values():
            numbers.sort(key=lambda i: images[i].start)
            parts = [images[i] for i in numbers]
            sizes, at = [], parts[0].start
            for part in parts:
                sizes += [part.start - at, part.end - part.start]
                at = part.end
            # The bytes between the images are copied as well, which is faster.
            copied = self._place.copy_in(parts[0].memory[parts[0].start : at])
            for i, part, data in zip(numbers, parts, copied.split(sizes)[1::2], strict=True):
                images[i] = StridedImage.interleaved(data, part.header.height, part.header.width)
        return images

    def _decoded(self, batch: EncodedBatch, slots: list[Slot]) -> list[_Decoded | BadSample | None]:
        """Return each image, or why it cannot be decoded; None for unopened images."""
        decoded: list[_Decoded | BadSample | None] = [None] * len(slots)
        of_gpu: list[tuple[int, EncodedImage, torch.Tensor]] = []
        read = zip(batch.images, batch.parts(), batch.starts(), strict=True)
        for i, (image, data, start) in enumerate(read):
            if image is not None and image.is_decoded:
                pixels = _OnHost(batch.arena, start + image.pixels_start, image.header)
                decoded[i] = _Decoded(image.header, image.target, pixels)
            elif image is not None:
                of_gpu.append((i, image, data))
        results = self._decode(
            [data for _, _, data in of_gpu], [image.header for _, image, _ in of_gpu]
        )
        for (i, image, _), result in zip(of_gpu, results, strict=True):
            if isinstance(result, ValueError):
                decoded[i] = bad_image(image.name, slots[i].key, result)
            else:
                decoded[i] = _Decoded(image.header, image.target, result)
        return decoded

    def _decode(
        self, data: list[torch.Tensor], headers: list[ImageHeader]
    ) -> list[_Pixels | ValueError]:
        """Decode images on the GPU, and on the CPU those that it refuses.

        The host waits for the stream before, because queued work may still read the new memory, and
        after, because the decoder may still read the bytes.
        """
        if not data:
            return []
        self._place.synchronize()
        decoder = self._decoders.for_this_thread(self._decoder)
        decoded = decoder.decode_batch(data, headers)
        self._place.synchronize()
        return [
            self._decode_on_cpu(data[i], headers[i]) if isinstance(found, ValueError) else found
            for i, found in enumerate(decoded)
        ]

    def _decode_on_cpu(self, data: torch.Tensor, header: ImageHeader) -> _OnHost | ValueError:
        try:
            pixels = self._decoder.cpu.decode(data, header)
        except ValueError as error:
            return error
        # Decoders return interleaved colours, so this is a view, not a copy.
        return _OnHost(pixels.permute(1, 2, 0).reshape(-1), 0, header)

    def _make(self, slot: Slot) -> None:
        """Read and decode a sample unless it is decoded, to the same bits as in a batch.

        Raises:
            BadSample: the sample cannot be read or decoded, or was not in the batch.
        """
        if isinstance(slot.sample, BadSample):
            raise slot.sample
        if slot.sample is not None:
            return
        arena = Arena(lambda num_bytes: empty_host((num_bytes,), torch.uint8), 0)
        sample, header, target = opened(self._source, slot.key, arena)
        if self._decoder.takes(header, sample.data):
            (pixels,) = self._decode([sample.data], [header])
        else:
            pixels = self._decode_on_cpu(sample.data, header)
        if isinstance(pixels, ValueError):
            raise bad_image(sample.name, slot.key, pixels) from pixels
        slot.sample = _Decoded(header, target, pixels)


class ReadyDeviceImages(DeviceImages):
    """DeviceImages for samples from a reader; with "drop", a batch of bad images is dropped."""

    def decode(self, batch: EncodedBatch) -> Any:
        try:
            return super().decode(batch)
        except BadSample as error:
            if self._policy.mode != "drop":
                raise
            return Answer(SKIPPED, bad=all_bad(batch.request, error))

    def augment(self, batch: Any) -> Any:
        return batch if isinstance(batch, Answer) else super().augment(batch)


class ThreadDecoders:
    """Copies of one decoder, with the same pixels, for the life of the threads that use them.

    The first thread uses the decoder itself, and leaves it to another thread at its end. A thread
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
            decoder: the decoder to copy.
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
