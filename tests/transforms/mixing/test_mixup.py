"""MixUp (D6)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import v2

from stateful_gpu_loader.transforms.mixing import MixUp
from tests.transforms.augmented_batches import batch, by_torchvision


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_batches_are_torchvisions(n: int, dtype: torch.dtype) -> None:
    """D6: bit for bit, for the same share; the arguments stay as they are."""
    images, labels = batch(n)
    images = images.to(dtype)
    before = images.clone(), labels.clone()
    for share in (0.0, 2.0**-24, 0.3, 0.5, 1.0):
        made = MixUp(num_classes=5).apply(images, labels, (share,))
        expected = by_torchvision(v2.MixUp(num_classes=5), images, labels, lam=share)
        for ours, theirs in zip(made, expected, strict=True):
            assert ours.dtype is theirs.dtype
            assert torch.equal(ours, theirs)
    assert torch.equal(images, before[0])
    assert torch.equal(labels, before[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float64])
def test_labels_that_are_weights_already(dtype: torch.dtype) -> None:
    """D6: [n, num_classes] is mixed as it is, float afterwards."""
    images, labels = batch(4)
    weights = torch.eye(5)[labels].to(dtype)
    for arguments in ({}, {"num_classes": 5}):
        made = MixUp(**arguments).apply(images, weights, (0.3,))
        expected = by_torchvision(v2.MixUp(**arguments), images, weights, lam=0.3)
        assert made[1].dtype is expected[1].dtype
        assert torch.equal(made[1], expected[1])


def test_layouts_do_not_matter() -> None:
    images, labels = batch(4)
    expected = MixUp(num_classes=5).apply(images, labels, (0.3,))[0]
    strided = images.to(memory_format=torch.channels_last)
    assert torch.equal(MixUp(num_classes=5).apply(strided, labels, (0.3,))[0], expected)


def test_threads_do_not_matter() -> None:
    """Law 1."""
    images, labels = batch(3, 501, 333)
    torch.set_num_threads(1)
    alone = MixUp(num_classes=5).apply(images, labels, (0.3,))[0]
    torch.set_num_threads(2)
    assert torch.equal(MixUp(num_classes=5).apply(images, labels, (0.3,))[0], alone)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_shares_are_distributed_as_torchvisions(alpha: float) -> None:
    """D6: Kolmogorov-Smirnov over 3000 shares."""
    torch.manual_seed(3)
    recipe, reference = MixUp(alpha=alpha, num_classes=5), v2.MixUp(alpha=alpha, num_classes=5)
    uniforms = np.random.default_rng(0).random((3000, recipe.num_draws))
    ours = [recipe.draw(row, 64, (224, 224))[0] for row in uniforms]
    theirs = [reference.make_params([])["lam"] for _ in range(3000)]
    assert stats.ks_2samp(ours, theirs).pvalue > 1e-3


def test_images_that_cannot_hold_a_blend_are_refused() -> None:
    """D6: torchvision refuses them too, by an error of torch's."""
    images, labels = batch(2)
    with pytest.raises(TypeError, match=r"uint8.*ToDtype"):
        MixUp(num_classes=5).apply(images.to(torch.uint8), labels, (0.5,))
    with pytest.raises(RuntimeError):
        by_torchvision(v2.MixUp(num_classes=5), images.to(torch.uint8), labels, lam=0.5)
