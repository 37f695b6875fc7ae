"""Posterize, solarize, autocontrast and equalize on batches: torchvision's, to the bit (D6)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader.transforms.color.adjustments import (
    autocontrast,
    equalize,
    posterize,
    solarize,
)
from tests.transforms.pictures import as_float, decoded, noise

BYTES = [decoded("coffee")[:, :99, :101], noise(7, 5), noise(1, 1), noise(37, 53) // 2 + 20]
IMAGES = [*BYTES, *map(as_float, BYTES), as_float(BYTES[0]).half(), as_float(BYTES[0]).double()]
every_image = pytest.mark.parametrize("image", IMAGES, ids=lambda i: f"{i.dtype} {list(i.shape)}")


def columns(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64).view(-1, 1, 1, 1)


def one_batch(image: Tensor, n: int) -> Tensor:
    return image.expand(n, -1, -1, -1)


@every_image
def test_posterize(image: Tensor) -> None:
    """D6: each image its own number of bits, none and all of them too."""
    made = posterize(one_batch(image, 9), columns([2.0**bits for bits in range(9)]))
    for bits, result in enumerate(made):
        assert torch.equal(result, F.posterize(image, bits))


@every_image
def test_solarize(image: Tensor) -> None:
    """D6: each image its own threshold, those that are levels too."""
    shares = [*torch.linspace(1.0, 0.0, 31).tolist(), 128 / 255, 20 / 255]
    brightest = 1.0 if image.is_floating_point() else 255.0
    for share, result in zip(
        shares, solarize(one_batch(image, len(shares)), columns(shares)), strict=True
    ):
        assert torch.equal(result, F.solarize(image, brightest * share))


def test_normalized_floats() -> None:
    """D6: outside [0, 1] too, as torchvision has it."""
    image = as_float(noise(9, 9)) * 4 - 2
    (posterized,) = posterize(image[None], columns([8.0]))
    assert torch.equal(posterized, F.posterize(image, 3))
    assert torch.equal(solarize(image[None], columns([0.3]))[0], F.solarize(image, 0.3))
    assert torch.equal(autocontrast(image[None])[0], F.autocontrast(image))


def flat_and_others() -> Tensor:
    """Bytes [4, 3, 8, 8]: of one level, of one level in one channel, of two levels, and noise."""
    flat = torch.full((3, 8, 8), 77, dtype=torch.uint8)
    two = flat.clone()
    two[:, :3] = 200
    mixed = noise(8, 8).contiguous()
    mixed[1] = 0
    return torch.stack([flat, mixed, two, noise(8, 8, seed=4)])


@pytest.mark.parametrize("operation", ["autocontrast", "equalize"])
def test_each_image_is_judged_alone(operation: str) -> None:
    """D6: flat images and channels stay as they are, whatever their neighbours are like."""
    function = {"autocontrast": autocontrast, "equalize": equalize}[operation]
    reference = getattr(F, operation)
    for images in (flat_and_others(), as_float(flat_and_others())):
        made = function(images)
        for image, result in zip(images, made, strict=True):
            assert torch.equal(result, reference(image))
    assert torch.equal(made[0], as_float(flat_and_others())[0])


@every_image
def test_autocontrast_and_equalize_of_an_image_alone(image: Tensor) -> None:
    """D6: bit for bit."""
    assert torch.equal(autocontrast(image[None])[0], F.autocontrast(image))
    assert torch.equal(equalize(image[None])[0], F.equalize(image))


@every_image
def test_images_stay_as_they_are(image: Tensor) -> None:
    before = image.clone()
    posterize(image[None], columns([4.0]))
    solarize(image[None], columns([0.3]))
    autocontrast(image[None])
    equalize(image[None])
    assert torch.equal(image, before)


def test_two_channels_are_refused() -> None:
    """D6: as torchvision refuses them."""
    with pytest.raises(TypeError, match="2 channels"):
        autocontrast(noise(4, 4, 2)[None])
