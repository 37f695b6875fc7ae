"""RandomAffine and RandomRotation: torchvision's pixels, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader.transforms import RandomRotation
from stateful_gpu_loader.transforms.geometry.affine import RandomAffine
from tests.transforms.pictures import as_float, noise, rows_for


def test_shear_is_torchvisions_and_what_was_not_asked_for_is_left_alone() -> None:
    for shear in (0.5, (1, 2), (1, 2, 3, 4)):
        assert RandomAffine(0, shear=shear).shear == tuple(v2.RandomAffine(0, shear=shear).shear)
    for angle, *others in rows_for(RandomAffine(30), noise(40, 40), 5):
        assert angle != 0
        assert others == [0, 0, 1, 0, 0]


@pytest.mark.parametrize("size", [(24, 24), (24, 30)])
@pytest.mark.parametrize("center", [None, (12, 12)])
def test_quarter_turns_among_other_angles(size: tuple[int, int], center: object) -> None:
    """torchvision turns them without sampling; a batch does so image by image."""
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
    """Angles with one resulting size are one batch; others are refused with both sizes."""
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
