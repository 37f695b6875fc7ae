"""Checks of the expected batches that the other GPU tests compare with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stateful_gpu_loader.decoders import make_decoder
from stateful_gpu_loader.decoders.cpu_share import SharedOut
from stateful_gpu_loader.decoders.registry import make_batch_decoder
from tests.conformance import same
from tests.gpu.photos import COLORFUL, RECIPES, STD, expected_batches, make_loader

LEVEL = 1 / (255 * min(STD))


def test_expected_batches_are_those_of_a_cpu_loader(photos: Path) -> None:
    """Within a level of rounding: on the CPU images are resized one by one, in integers."""
    expected = expected_batches(photos, make_decoder("torchvision"), device=torch.device("cpu"))
    delivered = list(make_loader(photos, device=None, decoder="torchvision"))
    for (wanted, wanted_targets), (images, targets) in zip(expected, delivered, strict=True):
        assert (images - wanted).abs().max() <= 1.01 * LEVEL
        assert torch.equal(targets, wanted_targets)


@pytest.mark.gpu
@pytest.mark.parametrize(("num_workers", "cpu_share"), [(0, 0.0), (2, 0.0), (2, 0.5)])
def test_a_batch_follows_from_its_bytes_and_keys(
    mixed: Path, backend: str, num_workers: int, cpu_share: float
) -> None:
    """Decoded alone, one by one; the host waits for the device at every step."""
    device = torch.device("cuda", torch.cuda.current_device())
    given = {"decoder": backend, "num_workers": num_workers, "cpu_share": cpu_share}
    for recipes in (RECIPES, COLORFUL):
        loader = make_loader(mixed, transform=recipes, **given)
        for epoch in range(2):
            expected = expected_batches(
                mixed,
                SharedOut(make_batch_decoder(backend, device), cpu_share),
                device=device,
                epoch=epoch,
                recipes=recipes,
            )
            delivered = list(loader)
            assert all(images.device.type == device.type for images, _ in delivered)
            assert all(targets.device.type == device.type for _, targets in delivered)
            assert same([list(batch) for batch in delivered], expected)
