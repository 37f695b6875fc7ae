"""What ``device=`` only moves: any dataset's batches, and images that the workers make (D9)."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import StatefulGPULoader
from tests.conformance import assert_exact_resume, same, uninterrupted
from tests.device_loaders import RECIPES, Loader, make, photos
from tests.fake_gpu import FakeGpu, fake_gpu

__all__ = ["fake_gpu", "photos"]


@pytest.mark.processes
def test_what_the_gpu_is_not_for_is_made_by_the_workers_and_moved(
    photos: Path, fake_gpu: FakeGpu
) -> None:
    """A callable as transform, a collate_fn, batch_size=None: decoded on the CPU, exactly."""

    def noisy(image: torch.Tensor) -> torch.Tensor:
        return image[:, :16, :16] * torch.rand(())

    def pairs(samples: list[Any]) -> dict[str, Any]:
        return {"images": torch.stack([image for image, _ in samples]), "names": ["a"]}

    kinds: list[dict[str, Any]] = [
        {"transform": noisy},
        {"transform": RECIPES, "collate_fn": pairs},
        {"transform": RECIPES, "batch_size": None},
    ]
    for kind in kinds:
        expected = list(make(photos, device=None, decoder="torchvision", **kind))
        for workers in (0, 2):
            loader = make(photos, decoder="torchvision", num_workers=workers, **kind)
            assert same(list(loader), expected)
        assert_exact_resume(partial(make, photos, **kind), other=({"num_workers": 2},))
    assert fake_gpu.decoder.num_calls == 0


class Numbers:
    """A map-style dataset that draws."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.rand(3), "y": (index, random.random()), "name": f"sample {index}"}


@pytest.mark.processes
def test_any_datasets_tensors_are_moved(fake_gpu: FakeGpu) -> None:
    """``device=`` on what is no Source: the same batches, and the same states."""

    def numbers(**changes: Any) -> Loader:
        return StatefulGPULoader(Numbers(), batch_size=4, shuffle=True, seed=3, **changes)

    expected, states = uninterrupted(numbers(), 2)
    for workers in (0, 2):
        moved = uninterrupted(numbers(device="cuda", num_workers=workers), 2)
        assert same(moved[0], expected)
        assert moved[1] == states
    assert_exact_resume(
        partial(numbers, device="cuda"), other=({"num_workers": 2, "prefetch_factor": 4},)
    )


class Sparse:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.eye(3).to_sparse() * index


def test_sparse_tensors_move_at_their_delivery(fake_gpu: FakeGpu) -> None:
    loader = StatefulGPULoader(Sparse(), batch_size=None, device="cuda")
    assert [float(batch.to_dense().sum()) for batch in loader] == [0, 3, 6]


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")])
def test_the_cpu_is_no_device_to_move_to(photos: Path, fake_gpu: FakeGpu, device: Any) -> None:
    loader = make(photos, device=device, decoder="torchvision")
    next(iter(loader))
    assert fake_gpu.places == []
    assert loader.device is device


def test_other_devices_are_refused(photos: Path) -> None:
    with pytest.raises(ValueError, match=r"device='mps' is not supported.*device=None"):
        make(photos, device="mps")
    with pytest.raises(TypeError, match="device = 'gpu' names no device"):
        make(photos, device="gpu")
