"""MixUp and CutMix: torchvision's batches, and the beta distribution of their shares."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torchvision.transforms import v2

from stateful_gpu_loader.transforms.mixing import CutMix, MixUp, beta_quantile, beta_share
from tests.transforms.augmented_batches import batch, by_torchvision


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_mixup_batches_are_torchvisions(n: int, dtype: torch.dtype) -> None:
    """Bit for bit, for the same share; the arguments stay unchanged."""
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
    """[n, num_classes] is mixed directly, and float afterwards."""
    images, labels = batch(4)
    weights = torch.eye(5)[labels].to(dtype)
    for arguments in ({}, {"num_classes": 5}):
        made = MixUp(**arguments).apply(images, weights, (0.3,))
        expected = by_torchvision(v2.MixUp(**arguments), images, weights, lam=0.3)
        assert made[1].dtype is expected[1].dtype
        assert torch.equal(made[1], expected[1])


def test_layouts_and_threads_do_not_matter() -> None:
    """A batch is a pure function of its configuration and its positions."""
    images, labels = batch(3, 501, 333)
    alone = MixUp(num_classes=5).apply(images, labels, (0.3,))[0]
    torch.set_num_threads(2)
    for given in (images, images.to(memory_format=torch.channels_last)):
        assert torch.equal(MixUp(num_classes=5).apply(given, labels, (0.3,))[0], alone)


def test_images_that_cannot_hold_a_blend_are_refused() -> None:
    """torchvision raises an error of torch's."""
    images, labels = batch(2)
    with pytest.raises(TypeError, match=r"uint8.*ToDtype"):
        MixUp(num_classes=5).apply(images.to(torch.uint8), labels, (0.5,))
    with pytest.raises(RuntimeError):
        by_torchvision(v2.MixUp(num_classes=5), images.to(torch.uint8), labels, lam=0.5)


BOXES = [(0, 0, 9, 7), (2, 1, 5, 6), (3, 3, 3, 5), (8, 6, 9, 7)]
"""Left, top, right, bottom: all, some, no and one pixel of 9 x 7."""


def torchvisions(images: Tensor, labels: Tensor, numbers: tuple[float, ...]) -> tuple[Tensor, ...]:
    *box, kept = numbers
    reference = v2.CutMix(num_classes=5)
    box = tuple(map(int, box))
    return by_torchvision(reference, images, labels, box=box, lam_adjusted=kept)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_cutmix_batches_are_torchvisions(n: int, dtype: torch.dtype) -> None:
    """Bit for bit, for the same box, on bytes too; the arguments stay unchanged."""
    images, labels = batch(n)
    images = images.mul(255).to(dtype)
    for pixels in (images, images.to(memory_format=torch.channels_last)):
        before = pixels.clone()
        for box in BOXES:
            numbers = (*map(float, box), 0.7)
            made = CutMix(num_classes=5).apply(pixels, labels, numbers)
            for ours, theirs in zip(made, torchvisions(pixels, labels, numbers), strict=True):
                assert ours.dtype is theirs.dtype
                assert torch.equal(ours, theirs)
        assert torch.equal(pixels, before)


@pytest.mark.parametrize("size", [(224, 224), (1, 1), (3, 700), (37, 53)])
def test_boxes_follow_torchvisions_formula(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    """The share and the middle of the box give torchvision's box and its kept share."""
    height, width = size
    recipe, reference = CutMix(num_classes=5), v2.CutMix(num_classes=5)
    image = torch.empty(2, 3, *size)
    for uniforms in np.random.default_rng(1).integers(0, 2**32, (40, 3)) * 2.0**-32:
        share = round(uniforms[0] * 2**24) / 2**24  # Beta(1, 1) is uniform.
        middles = iter([int(uniforms[1] * width), int(uniforms[2] * height)])
        monkeypatch.setattr(reference._dist, "sample", lambda shape, share=share: share)
        with monkeypatch.context() as patch:
            patch.setattr(torch, "randint", lambda *_, m=middles, **__: torch.tensor([next(m)]))
            params = reference.make_params([image])
        made = recipe.draw(uniforms, 2, size)
        assert made == (*params["box"], params["lam_adjusted"])


ALPHAS = [0.001, 0.05, 0.1, 0.2, 0.4, 0.5, 0.99, 1.0, 1.01, 1.5, 2.0, 7.7, 10.0, 300.0, 10000.0]
EXTREMES = [0.0, 2.0**-32, 0.5 - 2.0**-32, 0.5, 0.5 + 2.0**-32, 1.0 - 2.0**-32]


@pytest.mark.parametrize("alpha", ALPHAS)
def test_quantiles_are_scipys(alpha: float) -> None:
    """Within 1e-13, at the ends as in the middle; small ones of the usual alphas relatively.

    At x = 1e-20, an absolute error of 1e-13 would be far too large.
    """
    uniforms = np.concatenate((np.random.default_rng(0).random(60), EXTREMES))
    expected = stats.beta.ppf(uniforms, alpha, alpha)
    made = [beta_quantile(alpha, uniform) for uniform in uniforms.tolist()]
    np.testing.assert_allclose(made, expected, rtol=0, atol=1e-13)
    for exponent in (2, 8, 32, 52) if alpha in (0.1, 0.2, 1.0, 2.0) else ():
        expected = stats.beta.ppf(2.0**-exponent, alpha, alpha)
        assert beta_quantile(alpha, 2.0**-exponent) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_shares_are_rounded_and_symmetric(alpha: float) -> None:
    """Multiples of 2**-24 hide the last bits of a C library."""
    for uniform in (0.0, 2.0**-32, 0.1, 0.3, 0.5):
        share = beta_share(alpha, uniform)
        assert share * 2**24 == int(share * 2**24)
        assert abs(share - beta_quantile(alpha, uniform)) <= 2.0**-25
        assert np.float32(share) == share
        assert np.float32(1.0 - share) == 1.0 - share
    for uniform in (0.25, 0.375, 2.0**-20):
        assert beta_share(alpha, 1.0 - uniform) == 1.0 - beta_share(alpha, uniform)


def test_golden_shares() -> None:
    """Any change breaks every saved state; as scipy has them, in units of 2**-24."""
    golden = {0.1: [0, 14181, 8388608, 16777215], 1.0: [0, 4194304, 8388608, 15099494]}
    uniforms = [0.0, 0.25, 0.5, 0.9]
    for alpha, units in golden.items():
        assert [beta_share(alpha, uniform) * 2**24 for uniform in uniforms] == units
        assert np.rint(stats.beta.ppf(uniforms, alpha, alpha) * 2**24).tolist() == units
