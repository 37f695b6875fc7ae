"""What the host does for an image on its way to a GPU: ``python -m benchmarks.gpu.host_alone``.

It needs no GPU: the decoder costs nothing, no kernel is launched, nothing is waited for. What is
left is the work of the readers and of the stage's two threads, on a core, system calls included.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.utils.data import default_collate

from benchmarks.execution_paths import requests_of
from benchmarks.gpu.loaders import RECIPES
from benchmarks.gpu.reading_alone import ReadingAlone
from benchmarks.photographs import photograph_folder
from stateful_gpu_loader.decoders import Decoder, ImageHeader, make_decoder
from stateful_gpu_loader.decoders.batch_rule import decode_batch_by_rule
from stateful_gpu_loader.engine.device.images import DeviceImages
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.makers.encoded import EncodedBatch
from stateful_gpu_loader.transforms import Compose
from stateful_gpu_loader.transforms.batches.ragged import launch

_BATCH_SIZE, _BATCHES, _ROUNDS = 256, 4, 15
_MOST_BYTES = 2**26


class ReusedMemory:
    """Two pieces in turn: as page-locked memory that torch keeps, its pages are there already."""

    def __init__(self) -> None:
        self._pieces = [torch.zeros(_MOST_BYTES, dtype=torch.uint8) for _ in range(2)]

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        self._pieces.reverse()
        return self._pieces[0][: shape[0]]


class _NoDecoder:
    """Gives the pixels of any image at once."""

    cpu: Decoder = make_decoder("torchvision")
    family = "none"
    acts_on_exif = False

    def __init__(self) -> None:
        self._memory = torch.zeros(_MOST_BYTES, dtype=torch.uint8)
        self.pixels: list[torch.Tensor] = []

    def version(self) -> str:
        return ""

    def takes(self, header: ImageHeader, data: torch.Tensor) -> bool:
        return True

    def decode_batch(
        self, data: Sequence[torch.Tensor], headers: Sequence[ImageHeader]
    ) -> list[torch.Tensor | ValueError]:
        return decode_batch_by_rule(lambda data: self.pixels, data, headers)

    def made_before(self, batch: EncodedBatch) -> None:
        """What a decoder would make in its own time, and not in Python's."""
        sizes = [image.header.stored_size for image in batch.images if image]
        self.pixels = [self._memory[: 3 * h * w].view(3, h, w) for h, w in sizes]


def _no_launch(images: Any, placement: Any, pointwise: Any, memory_format: Any) -> torch.Tensor:
    """All of the fused launch but the kernel."""
    size = placement.sizes[0].tolist()
    out = torch.empty((len(images), 3, *size), dtype=pointwise.dtype)
    kernels: Any = SimpleNamespace(resample=lambda *arguments, **named: None)
    launch(kernels, images, placement, pointwise, out)
    return out


def main() -> None:
    """Microseconds an image: medians of rounds, and the least."""
    torch.set_num_threads(1)
    recipes = Compose(RECIPES)
    reading = ReadingAlone(
        photograph_folder(_BATCHES * _BATCH_SIZE), recipes, _BATCH_SIZE, ReusedMemory()
    )
    requests = requests_of(_BATCHES * _BATCH_SIZE, _BATCH_SIZE, _BATCHES)
    place: Any = SimpleNamespace(settle=lambda: None, copy_in=lambda tensor: tensor)
    decoder = _NoDecoder()
    steps = DeviceImages(
        reading.source,
        decoder=decoder,
        recipes=recipes,
        collate_fn=default_collate,
        policy=BadSamplePolicy(mode="raise"),
        place=place,
    )
    decoding: list[float] = []
    augmenting: list[float] = []
    readers: list[float] = []
    with mock.patch("stateful_gpu_loader.transforms.batches.batching.resample", _no_launch):
        for _ in range(_ROUNDS):
            readers.append(reading.cpu_microseconds_an_image(num_batches=_BATCHES))
            spent = [0.0, 0.0]
            for request in requests:
                batch = reading.execute(request)
                decoder.made_before(batch)
                started = time.thread_time()
                decoded = steps.decode(batch)
                half = time.thread_time()
                steps.augment(decoded)
                spent = [spent[0] + half - started, spent[1] + time.thread_time() - half]
            for found, seconds in zip((decoding, augmenting), spent, strict=True):
                found.append(1e6 * seconds / (_BATCHES * _BATCH_SIZE))
    for name, found in (
        ("a reader", readers),
        ("the stage's first thread", decoding),
        ("the stage's second thread", augmenting),
    ):
        print(f"{name}: {statistics.median(found):.1f} us an image, at least {min(found):.1f}")


if __name__ == "__main__":
    main()
