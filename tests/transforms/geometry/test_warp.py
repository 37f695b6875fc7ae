"""Warps: torchvision's matrices and pixels, each image of a batch by its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F
from torchvision.transforms.v2.functional._geometry import _get_inverse_affine_matrix

from stateful_gpu_loader.transforms.geometry.affine import inverse_affine_matrices, warp
from tests.transforms.batch_recipes import images
from tests.transforms.pictures import ODD_SIZES, as_float, decoded, noise

GENERATOR = np.random.default_rng(3)
ANGLES = GENERATOR.uniform(-400, 400, 20)
TRANSLATIONS = GENERATOR.integers(-9, 10, (20, 2)).astype(float)
SCALES = GENERATOR.uniform(0.3, 3, 20)
SHEARS = GENERATOR.uniform(-60, 60, (20, 2))


def params(i: int) -> dict[str, Any]:
    return {
        "angle": ANGLES[i].item(),
        "translate": TRANSLATIONS[i].tolist(),
        "scale": SCALES[i].item(),
        "shear": SHEARS[i].tolist(),
    }


@pytest.mark.parametrize("center", [None, (0.0, 0.0), (10.5, 70.0)])
def test_matrices_are_torchvisions(center: tuple[float, float] | None) -> None:
    """To the last bit of a float64."""
    height, width = 47, 60
    made = inverse_affine_matrices(
        (height, width),
        angles=ANGLES,
        translations=TRANSLATIONS,
        scales=SCALES,
        shears=SHEARS,
        center=center,
    )
    pivot = [0.0, 0.0] if center is None else [center[0] - width * 0.5, center[1] - height * 0.5]
    for i, matrix in enumerate(made.tolist()):
        assert matrix == _get_inverse_affine_matrix(pivot, **params(i))


def test_one_number_serves_all_matrices() -> None:
    both = inverse_affine_matrices((4, 5), angles=30.0, shears=[(1.0, 2.0), (3.0, 4.0)])
    for i, shear in enumerate([(1.0, 2.0), (3.0, 4.0)]):
        (alone,) = inverse_affine_matrices((4, 5), angles=[30.0], shears=shear)
        assert both[i].tolist() == alone.tolist()


def test_however_the_product_is_rounded_pixels_are_a_level_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the rounding of this machine's BLAS."""
    monkeypatch.undo()
    batch = images(20, (47, 60), torch.uint8, "interleaved")
    matrices = inverse_affine_matrices(
        (47, 60), angles=ANGLES, translations=TRANSLATIONS, scales=SCALES, shears=SHEARS
    )
    made = warp(batch, matrices, "bilinear", 7.0)
    for i, image in enumerate(batch):
        expected = F.affine_image(
            image, **params(i), interpolation=InterpolationMode.BILINEAR, fill=7.0
        )
        assert (made[i].int() - expected.int()).abs().max() <= 1


@pytest.mark.parametrize("size", ODD_SIZES)
def test_odd_images_stay_when_nothing_moves(size: tuple[int, int]) -> None:
    batch = noise(*size).unsqueeze(0)
    for interpolation in ("nearest", "bilinear"):
        assert torch.equal(warp(batch, inverse_affine_matrices(size), interpolation, 9.0), batch)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_are_the_rounded_result_of_float32(dtype: torch.dtype) -> None:
    """Here torchvision, with torch 2.15 on the CPU, misses pixels and reads outside the image."""
    batch = as_float(decoded("coffee")).unsqueeze(0).to(dtype)
    matrices = inverse_affine_matrices(tuple(batch.shape[-2:]), angles=[33.0])
    made = warp(batch, matrices, "bilinear", 0.0)
    assert made.dtype is dtype
    assert torch.equal(made, warp(batch.float(), matrices, "bilinear", 0.0).to(dtype))


def test_another_size_keeps_the_center() -> None:
    image = torch.arange(9, dtype=torch.uint8).view(1, 1, 3, 3)
    made = warp(image, inverse_affine_matrices((3, 3)), "nearest", 99.0, size=(1, 5))
    assert made.flatten().tolist() == [99, 3, 4, 5, 99]


def test_a_fill_of_another_number_of_channels_is_refused() -> None:
    """torchvision refuses it, too."""
    with pytest.raises(ValueError, match="3 channels"):
        warp(noise(4, 4).unsqueeze(0), inverse_affine_matrices((4, 4)), "nearest", (1.0, 2.0))
