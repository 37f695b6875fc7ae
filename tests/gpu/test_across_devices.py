"""CPU and GPU: the same draws, nearly the same pixels, and a state that names the device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stateful_gpu_loader import transforms as T
from tests.conformance import refusal
from tests.gpu.photos import MEAN, STD, make_loader

pytestmark = pytest.mark.gpu

MEAN_LEVELS = 3.0
"""Allowed mean difference of an image in levels of 255: nvJPEG's own inverse transform, and its
chroma without interpolation. Another crop, flip or sample differs by tens of levels.
"""


def _levels(images: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    return (images.cpu().float() * std + mean) * 255


def _difference(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the mean difference of each image in levels, float32 [n]."""
    return (_levels(one) - _levels(other)).abs().mean(dim=(1, 2, 3))


def test_the_gpu_shows_the_crops_that_the_cpu_shows(mixed: Path, backend: str) -> None:
    on_cpu = list(make_loader(mixed, device=None, decoder="torchvision"))
    on_gpu = list(make_loader(mixed, decoder=backend))
    for (images, targets), (others, other_targets) in zip(on_cpu, on_gpu, strict=True):
        assert torch.equal(targets, other_targets.cpu())
        assert _difference(images, others).max() <= MEAN_LEVELS
    other_seed = torch.cat([images for images, _ in make_loader(mixed, decoder=backend, seed=7)])
    images = torch.cat([images for images, _ in on_gpu])
    assert _difference(images, other_seed).median() > 5 * MEAN_LEVELS


def test_backends_agree_with_the_cpu_where_nothing_is_random(mixed: Path, backend: str) -> None:
    steps = [T.Resize((64, 64)), T.Normalize(MEAN, STD)]
    on_cpu = list(make_loader(mixed, device=None, decoder="torchvision", transform=steps))
    on_gpu = list(make_loader(mixed, decoder=backend, transform=steps))
    for (images, _), (others, _) in zip(on_cpu, on_gpu, strict=True):
        assert _difference(images, others).max() <= MEAN_LEVELS


def test_a_state_of_the_cpu_is_refused_by_name(photos: Path, backend: str) -> None:
    on_cpu = make_loader(photos, device=None, decoder="torchvision")
    next(iter(on_cpu))
    state = on_cpu.state_dict()
    refusal(make_loader(photos, decoder=backend), state, "decoder")
    accepted = make_loader(photos, decoder=backend)
    accepted.load_state_dict(state, accept={"decoder"})
    assert len(list(accepted)) == len(list(make_loader(photos, decoder=backend))) - 1


def test_a_state_of_the_gpu_is_refused_on_the_cpu(photos: Path, backend: str) -> None:
    on_gpu = make_loader(photos, decoder=backend)
    next(iter(on_gpu))
    on_cpu = make_loader(photos, device=None, decoder="torchvision")
    refusal(on_cpu, on_gpu.state_dict(), "decoder")


def test_auto_takes_the_family_that_the_state_was_saved_with(photos: Path, backend: str) -> None:
    saved = make_loader(photos, decoder=backend)
    next(iter(saved))
    loader = make_loader(photos, decoder="auto")
    loader.load_state_dict(saved.state_dict())
    assert loader.state_dict() == saved.state_dict()
