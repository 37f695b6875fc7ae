"""Batches of encoded images: read and looked into here, decoded and augmented by the device stage.

What the GPU does not take is decoded here, in the workers: which that is, the image's header alone
decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.datasets.storage.memory import Arena
from stateful_gpu_loader.decoders import Decoder, ImageHeader
from stateful_gpu_loader.engine.makers.bad_sample_errors import is_bad_encoding
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.makers.images import Allocate, decode, draw, header_of, read
from stateful_gpu_loader.records import Request, SampleKey
from stateful_gpu_loader.transforms import Compose
from stateful_gpu_loader.transforms.compose import PipelineDraw


@dataclass(frozen=True, slots=True)
class OpenedImage:
    """One image that was read, and whose header was understood."""

    name: str
    """Where it lies, for error messages."""
    target: Any
    header: ImageHeader
    is_decoded: bool
    """Whether it was decoded here, because the GPU does not take it."""


@dataclass(frozen=True, eq=False)
class EncodedBatch:
    """The images of one request, their bytes back to back."""

    request: Request
    images: tuple[OpenedImage | None, ...]
    """One for each sample; None where a sample is bad, or could not be read: with a policy for
    bad samples it is tried, and judged, by whoever decodes."""
    arena: torch.Tensor
    """uint8 [num_bytes] on the CPU: what the GPU is to decode."""
    lengths: tuple[int, ...]
    """Bytes of each sample in the arena; 0 of one that is decoded, or bad."""
    pixels: torch.Tensor
    """uint8 [num_bytes] on the CPU: [height, width, 3] of each image that is decoded."""
    drawn: PipelineDraw | None
    """What the recipes decided; None where a sample is missing, or of a size that they refuse."""

    def describe(self) -> str:
        """Its size, for a person."""
        num_bytes = [3 * image.header.height * image.header.width for image in self.images if image]
        return (
            f"a batch of {len(self.images)} images ({self.arena.numel() / 2**20:.1f} MiB encoded, "
            f"{sum(num_bytes) / 2**20:.1f} MiB decoded)"
        )


class EncodedMaker:
    """Reads and opens; touches no global generator, so it runs in any thread.

    Args:
        source: of encoded images.
        takes: whether the GPU decodes an image of this header and these bytes.
        decoder: for all others.
        recipes: of which the numbers are drawn here.
        allocate: where the bytes lie.
        policy: what is done about bad samples: under any but "raise" their places stay open.
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
    ) -> None:
        self._source = source
        self._takes = takes
        self._decoder = decoder
        self._recipes = recipes
        self._allocate = allocate
        self._policy = policy
        self._expected = 0

    def __call__(self, request: Request, check: Callable[[], None]) -> EncodedBatch:
        arena = Arena(lambda num_bytes: self._allocate((num_bytes,), torch.uint8), self._expected)
        opened: list[OpenedImage | None] = []
        lengths: list[int] = []
        decoded: list[torch.Tensor] = []
        keys = request.keys()
        for key in keys:
            check()
            start = arena.end
            image, pixels = self._open(key, arena)
            if image is None or pixels is not None:
                arena.cut(start)
            if pixels is not None:
                decoded.append(pixels)
            opened.append(image)
            lengths.append(arena.end - start)
        # Batches differ by some percent, and an arena that has to grow is copied: an eighth is
        # left free. One batch of large images does not make all later arenas as large.
        self._expected = max(arena.end * 9 // 8, self._expected * 7 // 8)
        drawn = self._draw(request, [image for image in opened if image is not None])
        pixels = self._allocate((sum(part.numel() for part in decoded),), torch.uint8)
        if decoded:
            torch.cat(decoded, out=pixels)
        return EncodedBatch(request, tuple(opened), arena.filled(), tuple(lengths), pixels, drawn)

    def _draw(self, request: Request, opened: list[OpenedImage]) -> PipelineDraw | None:
        if len(opened) < len(request.indices):
            return None
        try:
            return draw(
                self._recipes, request, request.positions, [image.header for image in opened]
            )
        except ValueError:
            if not self._policy.is_active:
                raise
            # The size they refuse may be what a damaged header says: that is judged first.
            return None

    def _open(self, key: SampleKey, arena: Arena) -> tuple[OpenedImage | None, torch.Tensor | None]:
        """The image, its bytes in the arena, and its pixels where it is decoded here."""
        if self._policy.known_reason(key.index) is not None:
            return None, None
        try:
            start = arena.end
            sample = read(self._source, key, arena.take)
            data = sample.data
            # What lies in the arena is looked at there: to look into a tensor costs 1 us more.
            view = arena.view(start, data.numel()) if arena.end > start else None
            header = header_of(sample, key, view)
            is_decoded = not self._takes(header, data)
            image = OpenedImage(sample.name, sample.target, header, is_decoded)
            if not is_decoded:
                arena.keep(start, data)
                return image, None
            pixels = decode(self._decoder, sample, header, key)
            # Decoders write colours side by side: it is a view then, not a copy.
            return image, pixels.permute(1, 2, 0).reshape(-1)
        except Exception as error:
            is_for_later = is_bad_encoding(error) or isinstance(error, OSError)
            if not self._policy.is_active or not is_for_later:
                raise
            return None, None
