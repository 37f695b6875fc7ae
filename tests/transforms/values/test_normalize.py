"""Normalize, also straight into the batch (D6)."""

from __future__ import annotations

import pytest
import torch
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader.transforms import Normalize
from tests.transforms.pictures import ODD_SIZES, as_float, decoded, noise

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


@pytest.mark.parametrize("name", ["astronaut", "coffee", "rocket"])
def test_bytes_become_normalized_floats(name: str) -> None:
    """D6: within 1e-6 of to_dtype(scale=True) and normalize, from any memory layout."""
    for image in (decoded(name), decoded(name).contiguous(), decoded(name).flip(-1)):
        expected = F.normalize(F.to_dtype(image, torch.float32, scale=True), MEAN, STD)
        made = Normalize(MEAN, STD).apply(image, [])
        torch.testing.assert_close(made, expected, rtol=0, atol=1e-6)


def test_every_level_of_every_channel() -> None:
    """D6: all 256 values, within 1e-6."""
    image = torch.arange(256, dtype=torch.uint8).expand(3, 1, 256)
    expected = F.normalize(F.to_dtype(image, torch.float32, scale=True), MEAN, STD)
    torch.testing.assert_close(Normalize(MEAN, STD).apply(image, []), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floats_are_normalized_as_by_torchvision(dtype: torch.dtype) -> None:
    """D6: bit for bit, keeping the dtype."""
    image = as_float(decoded("coffee")).to(dtype)
    made = Normalize(MEAN, STD).apply(image, [])
    assert made.dtype is dtype
    assert torch.equal(made, F.normalize(image, MEAN, STD))
    assert Normalize(MEAN, STD).dtype_after(dtype) is dtype


@pytest.mark.parametrize("size", ODD_SIZES)
def test_into_the_batch_gives_the_same_bits(size: tuple[int, int]) -> None:
    """D6: the fused way and the plain one are one result; the rows around stay untouched."""
    image, recipe = noise(*size), Normalize(MEAN, STD)
    batch = torch.full((3, 3, *size), -7.0)
    recipe.apply_into(image, [], batch[1])
    assert torch.equal(batch[1], recipe.apply(image, []))
    assert (batch[0] == -7).all()
    assert (batch[2] == -7).all()


def test_one_number_serves_all_channels() -> None:
    """D6: as torchvision broadcasts it."""
    image = decoded("coffee")
    made = Normalize([0.5], [0.25]).apply(image, [])
    expected = F.normalize(F.to_dtype(image, torch.float32, scale=True), [0.5], [0.25])
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "out", [torch.empty(3, 8, 9), torch.empty(3, 8, 8, dtype=torch.uint8), torch.empty(1, 8, 8)]
)
def test_wrong_room_in_the_batch_is_refused(out: torch.Tensor) -> None:
    """Nothing is broadcast, resized or converted in silence."""
    with pytest.raises(ValueError, match="has room for"):
        Normalize(MEAN, STD).apply_into(noise(8, 8), [], out)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((MEAN, [0.1, 0.0, 0.1]), ValueError, "has a 0"),
        ((MEAN, [0.1]), ValueError, "each channel"),
        (([], []), ValueError, "each channel"),
        ((MEAN, STD, True), ValueError, "inplace = True"),
        ((0.5, 0.5), TypeError, "mean=0.5"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(
    arguments: tuple[object, ...], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        Normalize(*arguments)


def test_other_integers_are_refused() -> None:
    """D6: as torchvision refuses them."""
    with pytest.raises(TypeError, match="float tensor"):
        Normalize(MEAN, STD).apply(noise(4, 4).int(), [])
