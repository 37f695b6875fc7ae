"""Crops: the drawn boxes, and the refused ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from stateful_gpu_loader.transforms import RandomCrop, RandomResizedCrop
from stateful_gpu_loader.transforms.geometry.crops import portable_exp
from tests.transforms.pictures import noise, rows_for


def test_small_image_is_refused_by_number() -> None:
    """v2 refuses it, too, but this message names the sample."""
    with pytest.raises(ValueError, match=r"sample 1 of the batch has 30x40, padded 34x44"):
        RandomCrop(36, padding=2).draw(np.zeros((2, 2)), np.array([[64, 64], [30, 40]]))


def test_box_outside_the_image_is_not_cut_off() -> None:
    """An image of another size than was drawn for raises, instead of giving a smaller crop."""
    with pytest.raises(RuntimeError):
        RandomCrop(20).apply(noise(30, 30), [0, 0, 0, 0, 15, 0])
    for box in ([15, 0, 20, 9], [0, 15, 9, 20], [0, -1, 9, 9], [-1, 9, 9, 9]):
        with pytest.raises(RuntimeError):
            RandomResizedCrop(8).apply(noise(60, 60)[:, 9:39, 9:39], box)


@pytest.mark.parametrize(
    ("size", "ratio"), [((20, 2000), (0.75, 4 / 3)), ((2000, 20), (0.75, 4 / 3)), ((9, 9), (1, 1))]
)
def test_fallback_is_torchvisions(size: tuple[int, int], ratio: tuple[float, float]) -> None:
    """If no attempt fits, the central box; a scale beyond the image forces it."""
    arguments = {"scale": (5.0, 6.0), "ratio": ratio}
    image = torch.empty(1, *size)
    params = v2.RandomResizedCrop(8, **arguments).make_params([image])
    expected = [params[name] for name in RandomResizedCrop.number_names]
    assert rows_for(RandomResizedCrop(8, **arguments), image, 3) == [expected] * 3


def test_first_fitting_attempt_is_taken() -> None:
    """Later attempts' draws do not matter once one fits; an earlier misfit does."""
    uniforms = np.full((2, 22), 0.5)
    uniforms[1, 2], uniforms[1, 12] = 1 - 2.0**-32, 0.0  # nearly all of the area, narrow: misfit
    size = np.array([[375, 500]] * 2)
    first, second = RandomResizedCrop(8).draw(uniforms, size).numbers.tolist()
    assert first == second
    uniforms[:, 3:12] = 0.1
    first, second = RandomResizedCrop(8).draw(uniforms, size).numbers.tolist()
    assert first[2] > second[2]


def test_no_pixel_is_left_out_of_reach() -> None:
    """The largest draw still lies inside, the smallest is the corner."""
    lowest, highest = np.zeros((1, 22)), np.full((1, 22), 1 - 2.0**-32)
    lowest[:, 2:] = highest[:, 2:] = 0.3
    size = np.array([[101, 203]])
    ((top, left, *_),) = RandomResizedCrop(8).draw(lowest, size).numbers.tolist()
    assert (top, left) == (0, 0)
    ((top, left, height, width),) = RandomResizedCrop(8).draw(highest, size).numbers.tolist()
    assert (top + height, left + width) == (101, 203)


def test_powers_are_those_of_the_library() -> None:
    """Within 1e-12 of math.exp, over ratios from 1:100 to 100:1."""
    exponents = np.linspace(-4.7, 4.7, 1001)
    expected = np.array([math.exp(value) for value in exponents])
    np.testing.assert_allclose(portable_exp(exponents), expected, rtol=1e-12)
    assert portable_exp(np.zeros(1)) == 1.0
