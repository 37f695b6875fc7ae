"""CutMix (D6)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torchvision.transforms import v2

from stateful_gpu_loader.transforms.mixing import CutMix
from tests.transforms.augmented_batches import batch, by_torchvision

BOXES = [(0, 0, 9, 7), (2, 1, 5, 6), (3, 3, 3, 5), (8, 6, 9, 7)]
"""Left, top, right, bottom: all, some, no and one pixel of 9 x 7."""


def torchvisions(images: Tensor, labels: Tensor, numbers: tuple[float, ...]) -> tuple[Tensor, ...]:
    *box, kept = numbers
    reference = v2.CutMix(num_classes=5)
    box = tuple(map(int, box))
    return by_torchvision(reference, images, labels, box=box, lam_adjusted=kept)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_batches_are_torchvisions(n: int, dtype: torch.dtype) -> None:
    """D6: bit for bit, for the same box, on bytes too; the arguments stay as they are."""
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
    """D6: for the same share and middle of the box, the same box and the same share kept."""
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


@pytest.mark.fuzz
@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_boxes_are_distributed_as_torchvisions(alpha: float) -> None:
    """D6: Kolmogorov-Smirnov of each side and of the share kept, over 3000 boxes."""
    torch.manual_seed(5)
    recipe, reference = CutMix(alpha=alpha, num_classes=5), v2.CutMix(alpha=alpha, num_classes=5)
    image = torch.empty(1, 3, 120, 200)
    rows = np.random.default_rng(2).random((3000, recipe.num_draws))
    ours = np.array([recipe.draw(row, 1, (120, 200)) for row in rows])
    drawn = [reference.make_params([image]) for _ in range(3000)]
    theirs = np.array([(*params["box"], params["lam_adjusted"]) for params in drawn])
    for column in range(5):
        assert stats.ks_2samp(ours[:, column], theirs[:, column]).pvalue > 1e-3
