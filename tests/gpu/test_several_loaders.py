"""Several loaders, streams, threads and GPUs at once do not affect each other."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from tests.conformance import same, uninterrupted
from tests.gpu.photos import COLORFUL, RECIPES, make_loader

pytestmark = pytest.mark.gpu


def test_two_loaders_in_turn(photos: Path, backend: str) -> None:
    arguments = [
        {"decoder": backend, "transform": RECIPES},
        {"decoder": "auto", "transform": COLORFUL},
    ]
    alone = [uninterrupted(make_loader(photos, **given), 2)[0] for given in arguments]
    loaders = [
        make_loader(photos, num_workers=2, prefetch_factor=4, **given) for given in arguments
    ]
    for epoch in range(2):
        for number, batches in enumerate(zip(*loaders, strict=True)):
            for batch, wanted in zip(batches, alone, strict=True):
                assert same(list(batch), wanted[epoch][number])


def test_two_loaders_in_two_threads(photos: Path, backend: str) -> None:
    """Each thread uses a private stream; the second loader decodes with another library."""
    names = (backend, "torchvision")
    alone = [uninterrupted(make_loader(photos, decoder=name), 4)[0] for name in names]
    found: dict[int, bool] = {}

    def consume(which: int) -> None:
        loader = make_loader(photos, decoder=names[which], num_workers=2, prefetch_factor=4)
        with torch.cuda.stream(torch.cuda.Stream()):
            epochs = [[[part.clone() for part in batch] for batch in loader] for _ in range(4)]
        torch.cuda.synchronize()
        found[which] = same(epochs, alone[which])

    threads = [threading.Thread(target=consume, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: True, 1: True}


def test_a_training_and_a_validation_loader(mixed: Path, photos: Path) -> None:
    """A pass over the second loader in the middle of one over the first."""
    expected, _ = uninterrupted(make_loader(mixed), 1)
    wanted, _ = uninterrupted(make_loader(photos, shuffle=False), 1)
    training = make_loader(mixed, num_workers=2)
    validation = make_loader(photos, shuffle=False, num_workers=2)
    for number, batch in enumerate(training):
        assert same(list(batch), expected[0][number])
        if number == 1:
            validation.set_epoch(0)
            assert same([list(other) for other in validation], wanted[0])


def test_another_gpu_than_the_current_one(photos: Path, backend: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    expected, _ = uninterrupted(make_loader(photos, decoder=backend, device="cuda:0"), 1)
    loader = make_loader(photos, decoder=backend, device="cuda:1", num_workers=2)
    delivered = list(loader)
    assert torch.cuda.current_device() == 0
    assert all(images.device == torch.device("cuda:1") for images, _ in delivered)
    found = [[part.cpu() for part in batch] for batch in delivered]
    assert same(found, [[part.cpu() for part in batch] for batch in expected[0]])


def test_the_current_gpu_counts_when_the_first_batch_is_asked_for(photos: Path) -> None:
    images, _ = next(iter(make_loader(photos, device="cuda")))
    assert images.device == torch.device("cuda", torch.cuda.current_device())
