"""DeviceImages by itself: what it leaves to be done when it returns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import default_collate

from stateful_gpu_loader import FolderSource
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.engine.device.images import DeviceImages
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.makers.encoded import EncodedBatch, EncodedMaker
from stateful_gpu_loader.engine.pipeline import never_stopped
from stateful_gpu_loader.records import Request
from tests.fake_gpu import FakeDecoder, FakePlace
from tests.images import write_photo_folder


def test_the_bytes_are_no_longer_read_when_a_batch_is_finished(tmp_path: Path) -> None:
    """Their memory goes to another batch as soon as nobody holds this one."""
    write_photo_folder(tmp_path, num_classes=1, per_class=6)
    source, recipes, place = FolderSource(tmp_path), T.Compose([T.Resize((8, 8))]), FakePlace()
    place.open()
    place.late_by = 0.2  # longer than all else that is done to these few pictures
    decoder = FakeDecoder(place)
    maker = EncodedMaker(
        source,
        takes=decoder.takes,
        decoder=decoder.cpu,
        recipes=recipes,
        allocate=place.empty_host,
        policy=BadSamplePolicy(mode="raise"),
    )
    steps = DeviceImages(
        source,
        decoder=decoder,
        recipes=recipes,
        collate_fn=default_collate,
        policy=BadSamplePolicy(mode="raise"),
        place=place,
    )
    for _ in range(2):
        request = Request(0, 1, 0, 0, 1, np.arange(6), 6)
        batch = maker(request, never_stopped)
        images, _ = steps.augment(steps.decode(batch))
        assert images.shape == (6, 3, 8, 8)
        del batch
        place.settle()
    assert place.torn == []


def test_a_batch_describes_itself() -> None:
    request = Request(0, 1, 0, 0, 1, np.arange(2), 2)
    arena = torch.zeros(1 << 20, dtype=torch.uint8)
    batch = EncodedBatch(request, (None, None), arena, (0, 0), None)
    assert batch.describe() == "a batch of 2 images (1.0 MiB as read, 0.0 MiB decoded)"
