"""batch_transform on the GPU: keyed, resumed, and the caller's generators restored."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import transforms as T
from tests.conformance import assert_exact_resume, same, uninterrupted
from tests.gpu.photos import make_loader

pytestmark = pytest.mark.gpu


def noisy(batch: Any) -> Any:
    """Draw from torch's generators of the CPU and of the GPU."""
    images, targets = batch
    noise = torch.randn(images.shape, device=images.device) * torch.rand(())
    return [images + noise, targets]


@pytest.mark.parametrize(
    "transform",
    [
        noisy,
        T.MixUp(num_classes=3),
        T.CutMix(num_classes=3),
        [T.CutMix(num_classes=3), noisy],
    ],
    ids=["callable", "mixup", "cutmix", "several"],
)
def test_batch_transforms_resume_exactly(photos: Path, transform: Any) -> None:
    make = partial(make_loader, photos, batch_transform=transform)
    assert_exact_resume(make, other=({"num_workers": 2}, {"num_workers": 0}))


def test_the_callers_generators_are_put_back(photos: Path) -> None:
    for batch_transform in (noisy, T.MixUp(num_classes=3)):
        batches = iter(make_loader(photos, batch_transform=batch_transform))
        torch.cuda.manual_seed(5)
        torch.manual_seed(6)
        before = torch.cuda.get_rng_state(), torch.get_rng_state()
        next(batches)
        torch.rand(3)
        drawn = torch.rand(3, device="cuda")
        torch.cuda.set_rng_state(before[0])
        assert torch.equal(drawn, torch.rand(3, device="cuda"))
        torch.manual_seed(6)
        next(batches)
        assert torch.equal(torch.get_rng_state(), before[1])


def test_the_callers_generators_do_not_matter(photos: Path) -> None:
    """A batch is a pure function of its keys, on the GPU too; batches have different draws."""
    expected, _ = uninterrupted(make_loader(photos, batch_transform=noisy), 1)
    torch.cuda.manual_seed(77)
    plain, _ = uninterrupted(make_loader(photos), 1)
    torch.rand(11, device="cuda")
    found, _ = uninterrupted(make_loader(photos, batch_transform=noisy, num_workers=2), 1)
    assert same(found, expected)
    noise = [images - other for (images, _), (other, _) in zip(expected[0], plain[0], strict=True)]
    assert not torch.equal(noise[0], noise[1])


def test_mixed_labels_are_those_of_the_cpu(photos: Path) -> None:
    """The same partners and the same share on any device."""
    arguments: dict[str, Any] = {"batch_transform": T.CutMix(num_classes=3)}
    on_cpu = make_loader(photos, device=None, decoder="torchvision", **arguments)
    on_gpu = make_loader(photos, decoder="torchvision", **arguments)
    for (_, labels), (_, others) in zip(on_cpu, on_gpu, strict=True):
        assert torch.equal(labels, others.cpu())
