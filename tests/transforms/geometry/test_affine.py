"""RandomAffine and RandomRotation: torchvision's pixels, and what they refuse."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader.transforms import RandomRotation
from stateful_gpu_loader.transforms.geometry.affine import RandomAffine
from tests.torchvisions_words import in_torchvisions_words
from tests.transforms.pictures import ODD_SIZES, as_float, decoded, noise, rows_for, sizes_of

AFFINE_ARGUMENTS = [
    {"degrees": 30},
    {"degrees": 0, "translate": (0.3, 0.1), "interpolation": "bilinear"},
    {"degrees": (-90, 90), "scale": (0.3, 2.0), "fill": (124, 116, 104)},
    {"degrees": 5, "shear": 20, "interpolation": InterpolationMode.BILINEAR, "fill": None},
    {"degrees": 5, "shear": (1, 2, -30, 30), "center": (3, 50), "fill": 7},
]


class Words(Enum):
    """Not torchvision's, though the word is."""

    LINEAR = "bilinear"


@pytest.mark.fuzz
@pytest.mark.parametrize("arguments", AFFINE_ARGUMENTS, ids=str)
def test_affine_pixels_are_torchvisions(arguments: dict[str, Any]) -> None:
    """Bit for bit on uint8 and float."""
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
    """Kolmogorov-Smirnov of each number; the shifts, which are whole, by chi-square too."""
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
        ({"degrees": 5, "interpolation": Words.LINEAR}, ValueError, "not supported"),
        ({"degrees": 5, "fill": {"others": 1}}, TypeError, "dict"),
        ({"degrees": 5, "center": (1, 2, 3)}, ValueError, "two numbers"),
    ],
    ids=str,
)
def test_wrong_arguments_of_affine_are_refused(
    arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        RandomAffine(**arguments)


ROTATION_ARGUMENTS = [
    {"degrees": 30},
    {"degrees": (-10, 200), "interpolation": "bilinear"},
    {"degrees": 45, "interpolation": InterpolationMode.BILINEAR, "fill": (124, 116, 104)},
    {"degrees": 45, "expand": True, "fill": None},
    {"degrees": [90, 90], "expand": True},
    {"degrees": [180, 180]},
    {"degrees": 180, "center": (10, 20), "fill": 7},
]


@pytest.mark.fuzz
@pytest.mark.parametrize("arguments", ROTATION_ARGUMENTS, ids=str)
def test_rotation_pixels_are_torchvisions(arguments: dict[str, Any]) -> None:
    """Bit for bit on uint8 and float; the drawn sizes are those of the result."""
    recipe = RandomRotation(**arguments)
    reference = v2.RandomRotation(**in_torchvisions_words(arguments))
    images = [decoded("coffee"), as_float(decoded("chelsea")), *(noise(*s) for s in ODD_SIZES[:6])]
    for image in images:
        uniforms = np.random.default_rng(0).random((3, 1))
        drawn = recipe.draw(uniforms, sizes_of([image] * 3))
        for numbers, size in zip(drawn.numbers.tolist(), drawn.sizes.tolist(), strict=True):
            expected = F.rotate(
                image,
                numbers[0],
                interpolation=reference.interpolation,
                expand=reference.expand,
                center=reference.center,
                fill=reference._fill["others"],
            )
            assert torch.equal(recipe.apply(image, numbers), expected)
            assert list(expected.shape[1:]) == size


@pytest.mark.parametrize("size", [(24, 24), (24, 30)])
@pytest.mark.parametrize("center", [None, (12, 12)])
def test_quarter_turns_among_other_angles(size: tuple[int, int], center: object) -> None:
    """torchvision turns them without sampling; a batch does so for the images they are of."""
    angles = np.array([[0.0], [37.0], [90.0], [-90.0], [180.0], [270.0], [360.0], [450.0], [5.0]])
    recipe = RandomRotation(999, "bilinear", center=center, fill=(1, 2, 3))
    batch = as_float(torch.stack([noise(*size, seed=i) for i in range(len(angles))]))
    for image, (angle,), made in zip(
        batch, angles.tolist(), recipe.apply_batch(batch, angles), strict=True
    ):
        expected = F.rotate(
            image, angle, InterpolationMode.BILINEAR, center=center, fill=[1.0, 2.0, 3.0]
        )
        assert torch.equal(made, expected)
        assert torch.equal(recipe.apply(image, [angle]), expected)


def test_expanded_batches_have_one_size_or_are_refused() -> None:
    """Angles that make one size are one batch; others are refused with both sizes."""
    recipe = RandomRotation(180, "bilinear", expand=True)
    batch = torch.stack([noise(20, 30, seed=i) for i in range(4)])
    for angles in ([[30.0], [-30.0], [150.0], [30.001]], [[90.0], [-90.0], [270.0], [90.0]]):
        made = recipe.apply_batch(batch, np.array(angles))
        for i, (angle,) in enumerate(angles):
            expected = F.rotate(batch[i], angle, InterpolationMode.BILINEAR, expand=True, fill=0)
            assert torch.equal(made[i], expected)
    with pytest.raises(ValueError, match=r"\[34, 36\] and \[36, 34\]"):
        recipe.apply_batch(batch, np.array([[30.0], [30.0], [60.0], [30.0]]))
    with pytest.raises(ValueError, match="images of"):
        recipe.apply_batch(batch, np.array([[0.0], [30.0], [30.0], [30.0]]))


def test_angles_are_distributed_as_torchvisions() -> None:
    """Kolmogorov-Smirnov over 4000 angles."""
    torch.manual_seed(3)
    ours = [row[0] for row in rows_for(RandomRotation((-20, 70)), noise(4, 4), 4000)]
    reference = v2.RandomRotation((-20, 70))
    theirs = [reference.make_params([])["angle"] for _ in range(4000)]
    assert stats.ks_2samp(ours, theirs).pvalue > 1e-3


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"degrees": -5}, ValueError, "-5"),
        ({"degrees": (1, 2, 3)}, TypeError, "two numbers"),
        ({"degrees": (5, 1)}, ValueError, "in order"),
        ({"degrees": "30"}, TypeError, "'30'"),
        ({"degrees": 5, "interpolation": "bicubic"}, ValueError, "bicubic"),
        ({"degrees": 5, "center": 3}, TypeError, "center = 3"),
        ({"degrees": 5, "center": (1, 2, 3)}, ValueError, "two numbers"),
        ({"degrees": 5, "fill": {"others": 1}}, TypeError, "dict"),
    ],
    ids=str,
)
def test_wrong_arguments_of_rotation_are_refused(
    arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        RandomRotation(**arguments)
