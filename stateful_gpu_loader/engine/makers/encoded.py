"""Batches of encoded images: read here, decoded and augmented by the device stage.

Images that the GPU does not take, by their headers and bytes, are decoded here, in the workers. A
PPM holds pixels already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch

from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.datasets.storage.memory import Arena, with_margin
from stateful_gpu_loader.decoders import Decoder, ImageHeader
from stateful_gpu_loader.decoders.header import JpegHeader, PpmHeader
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy, is_bad_encoding
from stateful_gpu_loader.engine.makers.images import Allocate, decode, draw, opened
from stateful_gpu_loader.engine.makers.turns import Turns
from stateful_gpu_loader.engine.stats import stage
from stateful_gpu_loader.records import Request, SampleKey
from stateful_gpu_loader.transforms import Compose
from stateful_gpu_loader.transforms.compose import PipelineDraw


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An image of an :class:`EncodedBatch`, which holds its bytes."""

    name: str
    """Location of the image, for error messages."""
    target: Any
    header: ImageHeader
    is_decoded: bool
    """Whether its bytes are pixels rather than a file."""

    @property
    def pixels_start(self) -> int:
        """Number of bytes before the pixels, [height, width, 3], of a decoded image."""
        return self.header.start if isinstance(self.header, PpmHeader) else 0


@dataclass(frozen=True, eq=False)
class EncodedBatch:
    """The images of one request, encoded or decoded, their bytes in one tensor."""

    request: Request
    images: tuple[EncodedImage | None, ...]
    """One image for each sample; None if the sample is bad or could not be read.

    The device stage replaces or drops missing images.
    """
    arena: torch.Tensor
    """Bytes of the images, in sequence, uint8 [num_bytes] on the CPU."""
    lengths: tuple[int, ...]
    """Number of bytes of each sample in the arena; 0 for a bad sample."""
    drawn: PipelineDraw | None
    """Numbers that the recipes drew; None if a sample is missing or its size is refused.

    Unless it is None, boxes and masks have moved with the pixels.
    """
    gaps: tuple[int, ...] = ()
    """Number of unused bytes in the arena before each sample, if any."""

    def parts(self) -> Sequence[torch.Tensor]:
        """Return views of each sample's bytes, uint8 [num_bytes], in one torch call."""
        sizes = self.lengths
        if self.gaps:
            sizes = tuple(chain.from_iterable(zip(self.gaps, self.lengths, strict=True)))
        parts: Sequence[torch.Tensor] = self.arena.split(sizes)
        return parts[1::2] if self.gaps else parts

    def starts(self) -> list[int]:
        """Return the place of each sample's first byte in the arena."""
        starts, end = [], 0
        for gap, length in zip(self.gaps or [0] * len(self.lengths), self.lengths, strict=True):
            starts.append(end + gap)
            end += gap + length
        return starts

    def describe(self) -> str:
        """Return the batch's size, for a person."""
        num_bytes = [3 * image.header.height * image.header.width for image in self.images if image]
        return (
            f"a batch of {len(self.images)} images ({self.arena.numel() / 2**20:.1f} MiB as read, "
            f"{sum(num_bytes) / 2**20:.1f} MiB decoded)"
        )


class ExpectedBytes:
    """Estimate of the size of a batch as read, for the allocation of its memory.

    Threads change it without a lock.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        """The estimate; 0 before the first batch."""

    def note(self, num_bytes: int) -> None:
        """Update the estimate with a batch of this size.

        The estimate shrinks slowly.
        """
        self.num_bytes = max(with_margin(num_bytes), self.num_bytes * 7 // 8)


class EncodedMaker:
    """Reads encoded images; uses no global generator, so it runs in any thread.

    Args:
        takes: whether the GPU decodes an image with this header and these bytes.
        decoder: decoder of all other images.
        recipes: recipes whose numbers are drawn here.
        allocate: allocates memory for the bytes.
        leaves_out_exif: whether the GPU's decoder gets JPEGs without their APP1 segments, which are
            removed here, after ``takes``.
        policy: policy for bad samples; unless it is "raise", their places stay empty.
        expected: estimate of a batch's size, which may outlive this object.
    """

    uses_global_generators = False

    def __init__(
        self,
        source: Source,
        *,
        takes: Callable[[ImageHeader, torch.Tensor], bool],
        decoder: Decoder,
        recipes: Compose,
        allocate: Allocate,
        policy: BadSamplePolicy,
        expected: ExpectedBytes | None = None,
        leaves_out_exif: bool = False,
    ) -> None:
        self._source = source
        self._takes = takes
        self._decoder = decoder
        self._recipes = recipes
        self._allocate = allocate
        self._policy = policy
        self._expected = expected or ExpectedBytes()
        self._leaves_out_exif = leaves_out_exif
        self._turns = Turns()

    def __call__(self, request: Request, check: Callable[[], None]) -> EncodedBatch:
        with self._turns.take(len(request.indices)):
            return self._read(request, check)

    def _read(self, request: Request, check: Callable[[], None]) -> EncodedBatch:
        keys = request.keys()
        arena = Arena(self._allocate_bytes, self._expected.num_bytes, len(keys))
        images: list[EncodedImage | None] = []
        lengths: list[int] = []
        gaps: list[int] = []
        with stage("read"):
            for key in keys:
                check()
                end = arena.end
                image, start = self._open(key, arena) or (None, end)
                if image is None:
                    arena.cut(end)
                images.append(image)
                gaps.append(start - end)
                lengths.append(arena.end - start)
        self._expected.note(arena.end)
        with stage("augment"):
            drawn = self._draw_and_move(keys, images)
        return EncodedBatch(
            request,
            tuple(images),
            arena.filled(),
            tuple(lengths),
            drawn,
            tuple(gaps) if any(gaps) else (),
        )

    def _allocate_bytes(self, num_bytes: int) -> torch.Tensor:
        return self._allocate((num_bytes,), torch.uint8)

    def _draw_and_move(
        self, keys: list[SampleKey], images: list[EncodedImage | None]
    ) -> PipelineDraw | None:
        """Draw for the images, and move their targets.

        Returns:
            the drawn numbers; None if an image is missing or refused.
        """
        present = [image for image in images if image is not None]
        if len(present) < len(keys):
            return None
        try:
            drawn, moved = draw(self._recipes, keys, present, self._source)
        except ValueError:
            if not self._policy.is_active:
                raise
            # A damaged header may claim the refused size; the device stage finds out.
            return None
        if self._source.has_spatial_targets:
            pairs = zip(present, moved, strict=True)
            images[:] = [replace(image, target=target) for image, target in pairs]
        return drawn

    def _open(self, key: SampleKey, arena: Arena) -> tuple[EncodedImage, int] | None:
        """Return the image, and where its bytes or pixels start in the arena."""
        if self._policy.known_reason(key.index) is not None:
            return None
        start = arena.end
        try:
            image = opened(self._source, key, arena)
            sample, header = image.sample, image.header
            data = sample.data
            is_decoded = not self._takes(header, data)
            if is_decoded and not isinstance(header, PpmHeader):
                with stage("decode"):
                    pixels = decode(self._decoder, image, key)
                arena.cut(start)
                # A view, because decoders return interleaved colours.
                data = pixels.permute(1, 2, 0).reshape(-1)
            arena.keep(start, data)
            if (
                self._leaves_out_exif
                and not is_decoded
                and isinstance(header, JpegHeader)
                and header.exif_spans
            ):
                start = arena.leave_out(start, header.exif_spans)
                header = header.without_exif()
            return EncodedImage(sample.name, image.target, header, is_decoded), start
        except Exception as error:
            is_for_later = is_bad_encoding(error) or isinstance(error, OSError)
            if not self._policy.is_active or not is_for_later:
                raise
            return None
