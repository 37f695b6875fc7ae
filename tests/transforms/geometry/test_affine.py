"""RandomAffine (D6)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader.transforms.geometry.affine import RandomAffine
from tests.torchvisions_words import in_torchvisions_words
from tests.transforms.pictures import ODD_SIZES, as_float, decoded, noise, rows_for

ARGUMENTS = [
    {"degrees": 30},
    {"degrees": 0, "translate": (0.3, 0.1), "interpolation": "bilinear"},
    {"degrees": (-90, 90), "scale": (0.3, 2.0), "fill": (124, 116, 104)},
    {"degrees": 5, "shear": 20, "interpolation": InterpolationMode.BILINEAR, "fill": None},
    {"degrees": 5, "shear": (1, 2, -30, 30), "center": (3, 50), "fill": 7},
]


@pytest.mark.fuzz
@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_pixels_are_torchvisions(arguments: dict[str, Any]) -> None:
    """D6: bit for bit on uint8 and float."""
    recipe = RandomAffine(**arguments)
    reference = v2.RandomAffine(**in_torchvisions_words(arguments))
    images = [decoded("coffee"), as_float(decoded("chelsea")), *(noise(*s) for s in ODD_SIZES[:6])]
    for image in images:
        for angle, x, y, scale, *shear in rows_for(recipe, image, 3):
            expected = F.affine(
                image,
                angle=angle,
                translate=[int(x), int(y)],
                scale=scale,
                shear=shear,
                interpolation=reference.interpolation,
                fill=reference._fill["others"],
                center=reference.center,
            )
            assert torch.equal(recipe.apply(image, [angle, x, y, scale, *shear]), expected)


@pytest.mark.parametrize(
    "arguments",
    [
        {"degrees": (-20, 70), "translate": (0.02, 0.3), "scale": (0.5, 3), "shear": (1, 2, 3, 9)},
        {"degrees": 10, "translate": (1.0, 0.0), "shear": 30},
        {"degrees": 10, "shear": (-5, 20)},
    ],
    ids=str,
)
def test_numbers_are_distributed_as_torchvisions(arguments: dict[str, Any]) -> None:
    """D6: Kolmogorov-Smirnov of each number; the shifts, which are whole, by chi-square too."""
    torch.manual_seed(3)
    image, n = torch.empty(1, 45, 60), 4000
    ours = np.array(rows_for(RandomAffine(**arguments), image, n))
    reference = v2.RandomAffine(**in_torchvisions_words(arguments))
    params = [reference.make_params([image]) for _ in range(n)]
    theirs = np.array([[p["angle"], *p["translate"], p["scale"], *p["shear"]] for p in params])
    for ours_of_it, theirs_of_it in zip(ours.T, theirs.T, strict=True):
        assert stats.ks_2samp(ours_of_it, theirs_of_it).pvalue > 1e-3
    shifts = np.unique(theirs[:, 1])
    if 1 < len(shifts) < 10:
        table = [[(numbers[:, 1] == shift).sum() for shift in shifts] for numbers in (ours, theirs)]
        assert stats.chi2_contingency(table).pvalue > 1e-3


def test_what_was_not_asked_for_is_left_alone() -> None:
    for angle, *others in rows_for(RandomAffine(30), noise(40, 40), 5):
        assert angle != 0
        assert others == [0, 0, 1, 0, 0]


@pytest.mark.parametrize("arguments", [{"shear": 0.5}, {"shear": (1, 2)}, {"shear": (1, 2, 3, 4)}])
def test_shear_is_torchvisions(arguments: dict[str, Any]) -> None:
    recipe, reference = RandomAffine(0, **arguments), v2.RandomAffine(0, **arguments)
    assert recipe.shear == tuple(reference.shear)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"degrees": -5}, ValueError, "-5"),
        ({"degrees": (5, 1)}, ValueError, "in order"),
        ({"degrees": 5, "translate": 0.1}, TypeError, "two fractions"),
        ({"degrees": 5, "translate": (0.1, 1.1)}, ValueError, "within 0 and 1"),
        ({"degrees": 5, "translate": (-0.1, 0.1)}, ValueError, "within 0 and 1"),
        ({"degrees": 5, "scale": (0, 1)}, ValueError, "positive"),
        ({"degrees": 5, "scale": 2}, TypeError, "scale=2"),
        ({"degrees": 5, "shear": -1}, ValueError, "-1"),
        ({"degrees": 5, "shear": (1, 2, 3)}, TypeError, "shear"),
        ({"degrees": 5, "shear": (1, 2, 4, 3)}, ValueError, "in order"),
        ({"degrees": 5, "interpolation": "bicubic"}, ValueError, "bicubic"),
        ({"degrees": 5, "fill": {"others": 1}}, TypeError, "dict"),
        ({"degrees": 5, "center": (1, 2, 3)}, ValueError, "two numbers"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(
    arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        RandomAffine(**arguments)
