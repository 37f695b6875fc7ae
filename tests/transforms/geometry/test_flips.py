"""RandomHorizontalFlip and RandomVerticalFlip."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader.transforms import RandomHorizontalFlip, RandomVerticalFlip
from tests.transforms.pictures import ODD_SIZES, as_float, decoded, noise, rows_for

CASES = [(RandomHorizontalFlip, F.horizontal_flip), (RandomVerticalFlip, F.vertical_flip)]


@pytest.mark.parametrize(("recipe", "functional"), CASES)
def test_pixels_are_torchvisions(recipe: type, functional: object) -> None:
    """Bit for bit, or the image itself."""
    for image in (decoded("coffee"), as_float(decoded("rocket")), *(noise(*s) for s in ODD_SIZES)):
        assert torch.equal(recipe().apply(image, [1]), functional(image))
        assert recipe().apply(image, [0]) is image


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize(("recipe", "functional"), CASES)
def test_probability(recipe: type, functional: object, p: float) -> None:
    """Binomial test of the number of flips; 0 and 1 are never and always."""
    rows = rows_for(recipe(p), noise(4, 4), 10000)
    flips = sum(numbers[0] for numbers in rows)
    assert stats.binomtest(flips, len(rows), p).pvalue > 1e-3
    edges = recipe(p).draw(np.array([[0.0], [1 - 2.0**-32]]), np.ones((2, 2), np.int64))
    assert edges.numbers.tolist() == [[int(p > 0)], [int(p == 1)]]


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
@pytest.mark.parametrize(("recipe", "functional"), CASES)
def test_wrong_probability_is_refused(recipe: type, functional: object, p: float) -> None:
    with pytest.raises(ValueError, match=f"p = {p}"):
        recipe(p)
