"""DeviceImages by itself: what it leaves to be done when it returns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from stateful_gpu_loader import FolderSource
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.decoders import ImageHeader, make_decoder
from stateful_gpu_loader.engine.device.images import DeviceImages
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.makers.encoded import EncodedBatch, EncodedMaker
from stateful_gpu_loader.engine.pipeline import never_stopped
from stateful_gpu_loader.records import Request
from tests.fake_gpu import FakeDecoder, FakePlace
from tests.images import write_photo_folder


def made(
    root: Path, place: FakePlace, decoder: Any, recipes: T.Compose
) -> tuple[EncodedMaker, DeviceImages]:
    """Return what reads batches of a folder, and what finishes them."""
    source, policy = FolderSource(root), BadSamplePolicy(mode="raise")
    maker = EncodedMaker(
        source,
        takes=decoder.takes,
        decoder=decoder.cpu,
        recipes=recipes,
        allocate=place.empty_host,
        policy=policy,
    )
    steps = DeviceImages(
        source,
        decoder=decoder,
        recipes=recipes,
        collate_fn=default_collate,
        policy=policy,
        place=place,
    )
    return maker, steps


def request_of(num_images: int) -> Request:
    return Request(0, 1, 0, 0, 1, np.arange(num_images), num_images)


def test_the_bytes_are_no_longer_read_when_a_batch_is_finished(tmp_path: Path) -> None:
    """Their memory goes to another batch as soon as nobody holds this one."""
    write_photo_folder(tmp_path, num_classes=1, per_class=6)
    place = FakePlace()
    place.open()
    place.late_by = 0.2  # longer than all else that is done to these few pictures
    maker, steps = made(tmp_path, place, FakeDecoder(place), T.Compose([T.Resize((8, 8))]))
    for _ in range(2):
        batch = maker(request_of(6), never_stopped)
        images, _ = steps.augment(steps.decode(batch))
        assert images.shape == (6, 3, 8, 8)
        del batch
        place.settle()
    assert place.torn == []


class CpuDecoded:
    """A decoder of the GPU that leaves the files of these lengths to the CPU, and refuses some."""

    family = "fake-cuda"

    def __init__(self, left: set[int], refused: set[int]) -> None:
        self.cpu = make_decoder("torchvision")
        self._left, self._refused = left, refused

    def version(self) -> str:
        return "1"

    def takes(self, header: ImageHeader, data: torch.Tensor) -> bool:
        return len(data) not in self._left

    def decode_batch(
        self, data: Sequence[torch.Tensor], headers: Sequence[ImageHeader]
    ) -> list[torch.Tensor | ValueError]:
        return [
            ValueError("refused") if len(each) in self._refused else self.cpu.decode(each, header)
            for each, header in zip(data, headers, strict=True)
        ]


def test_pixels_of_the_cpu_are_copied_in_the_augmenting_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host waits for the first step's stream before it calls the engines."""
    files = write_photo_folder(tmp_path, num_classes=1, per_class=9)
    sizes = [path.stat().st_size for path in files]
    place = FakePlace()
    place.open()
    decoder = CpuDecoded({sizes[i] for i in (1, 2, 5)}, {sizes[7]})
    maker, steps = made(tmp_path, place, decoder, T.Compose([T.Resize((16, 16))]))
    copied: list[torch.Tensor] = []
    monkeypatch.setattr(place, "copy_in", lambda given: copied.append(given) or given.clone())
    decoded = steps.decode(maker(request_of(9), never_stopped))
    assert copied == []
    images, _ = steps.augment(decoded)
    assert len(copied) == 3, "one of the batch's memory, one of the refused image, one of targets"
    maker, steps = made(tmp_path, place, CpuDecoded(set(), set()), T.Compose([T.Resize((16, 16))]))
    expected, _ = steps.augment(steps.decode(maker(request_of(9), never_stopped)))
    assert torch.equal(images, expected)


def test_a_batch_describes_itself() -> None:
    request = Request(0, 1, 0, 0, 1, np.arange(2), 2)
    arena = torch.zeros(1 << 20, dtype=torch.uint8)
    batch = EncodedBatch(request, (None, None), arena, (0, 0), None)
    assert batch.describe() == "a batch of 2 images (1.0 MiB as read, 0.0 MiB decoded)"
