"""GaussianBlur."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader.transforms.color.blur import GaussianBlur
from tests.transforms.pictures import as_float, decoded, noise


def test_a_grey_image_is_what_each_channel_of_a_color_image_is() -> None:
    """Other code convolves a single plane in torchvision: bytes are equal, floats within 2e-7."""
    image = decoded("coffee")[:, :60, :64]
    blur = GaussianBlur(3)
    assert torch.equal(blur.apply(image[:1], [1.0]), F.gaussian_blur(image[:1], [3, 3], [1.0, 1.0]))
    image = as_float(image)
    made = blur.apply(image, [1.0])
    for plane, expected in zip(image.split(1), made.split(1), strict=True):
        assert torch.equal(blur.apply(plane, [1.0]), expected)
        theirs = F.gaussian_blur(plane, [3, 3], [1.0, 1.0])
        torch.testing.assert_close(expected, theirs, rtol=0, atol=2e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_are_the_rounded_result_of_float32(dtype: torch.dtype) -> None:
    image = as_float(decoded("coffee")[:, :60, :64]).to(dtype)
    made = GaussianBlur(5).apply(image, [1.3])
    assert torch.equal(made, GaussianBlur(5).apply(image.float(), [1.3]).to(dtype))
    expected = F.gaussian_blur(image, [5, 5], [1.3, 1.3])
    torch.testing.assert_close(made, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-3)


def test_an_image_too_small_to_be_mirrored_is_refused_when_drawn() -> None:
    """torchvision refuses it later, when pixels are made; width comes first in kernels."""
    sizes = np.array([[9, 9], [2, 5]])
    GaussianBlur((9, 3)).draw(np.zeros((2, 1)), sizes)
    with pytest.raises(ValueError, match="sample 1 of the batch has 2x5"):
        GaussianBlur((3, 9)).draw(np.zeros((2, 1)), sizes)
    with pytest.raises(ValueError, match="sample 0 of the batch has 1x9"):
        GaussianBlur(3).draw(np.zeros((1, 1)), np.array([[1, 9]]))
    for size in ((2, 5), (4, 5)):
        with pytest.raises(RuntimeError):
            F.gaussian_blur(noise(*size), [3, 9], [1.0, 1.0])
