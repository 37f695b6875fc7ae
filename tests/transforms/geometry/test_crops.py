"""CenterCrop and RandomCrop: boxes of fixed size."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader.transforms import CenterCrop, RandomCrop
from tests.transforms.pictures import ODD_SIZES, as_float, decoded, noise, rows_for

PADDED = [
    {"size": (200, 180)},
    {"size": 64, "padding": 8},
    {"size": 64, "padding": (3, 0)},
    {"size": 64, "padding": [1, 2, 3, 4], "fill": (124, 116, 104)},
    {"size": 64, "padding": 0, "fill": 5},
    {"size": 700, "pad_if_needed": True},
    {"size": 700, "pad_if_needed": True, "fill": (124, 116, 104)},
    {"size": (700, 40), "padding": 5, "pad_if_needed": True, "padding_mode": "edge"},
    {"size": 64, "padding": 9, "padding_mode": "reflect"},
    {"size": 64, "padding": 9, "padding_mode": "symmetric", "fill": [7]},
    {"size": 64, "padding": (-3, 5)},
]


@pytest.mark.parametrize("size", ODD_SIZES)
@pytest.mark.parametrize("box", [1, 4, 224, (2, 300)])
def test_center_crop_is_torchvisions(size: tuple[int, int], box: int | tuple[int, int]) -> None:
    """Bit for bit, for images smaller and larger, with every parity of the margins."""
    image, recipe = noise(*size), CenterCrop(box)
    (numbers,) = rows_for(recipe, image, 1)
    assert torch.equal(recipe.apply(image, numbers), v2.CenterCrop(box)(image))


@pytest.mark.parametrize("arguments", PADDED, ids=str)
def test_random_crop_is_torchvisions(arguments: dict[str, Any]) -> None:
    """Bit for bit for the same padding and box, on uint8 and float."""
    recipe, reference = RandomCrop(**arguments), v2.RandomCrop(**arguments)
    for image in (decoded("coffee"), decoded("rocket"), as_float(decoded("coffee"))):
        for numbers in rows_for(recipe, image, 3):
            *padding, top, left = numbers
            expected = image
            if any(padding):
                expected = F.pad(
                    image,
                    padding,
                    fill=reference._fill["others"],
                    padding_mode=reference.padding_mode,
                )
            expected = F.crop(expected, top, left, *recipe.size)
            assert torch.equal(recipe.apply(image, numbers), expected)


@pytest.mark.parametrize("arguments", PADDED, ids=str)
def test_padding_is_that_of_torchvision(arguments: dict[str, Any]) -> None:
    """The same pixels are padded, and the box lies within the same room."""
    recipe, reference = RandomCrop(**arguments), v2.RandomCrop(**arguments)
    for image in (decoded("coffee"), decoded("rocket")):
        params = reference.make_params([image])
        for numbers in rows_for(recipe, image, 20):
            *padding, top, left = numbers
            assert padding == params["padding"]
            padded_height = image.shape[1] + padding[1] + padding[3]
            padded_width = image.shape[2] + padding[0] + padding[2]
            assert 0 <= top <= padded_height - params["height"]
            assert 0 <= left <= padded_width - params["width"]


def test_places_are_distributed_as_torchvisions() -> None:
    """Chi-square of the box's place over the 3 x 4 places there are."""
    torch.manual_seed(0)
    image, n = noise(6, 8), 6000
    recipe, reference = RandomCrop(4, padding=0), v2.RandomCrop(4)
    image = image[:, :, :7]
    ours = Counter((row[4], row[5]) for row in rows_for(recipe, image, n))
    params = [reference.make_params([image]) for _ in range(n)]
    theirs = Counter((param["top"], param["left"]) for param in params)
    places = sorted(ours | theirs)
    assert places == [(top, left) for top in range(3) for left in range(4)]
    table = [[count[place] for place in places] for count in (ours, theirs)]
    assert stats.chi2_contingency(table).pvalue > 1e-3


def test_small_image_is_refused_by_number() -> None:
    """As v2, but the message names the sample."""
    with pytest.raises(ValueError, match=r"sample 1 of the batch has 30x40, padded 34x44"):
        RandomCrop(36, padding=2).draw(np.zeros((2, 2)), np.array([[64, 64], [30, 40]]))


def test_box_outside_the_image_is_not_cut_off() -> None:
    """An image of another size than was drawn for raises, instead of giving a smaller crop."""
    with pytest.raises(RuntimeError):
        RandomCrop(20).apply(noise(30, 30), [0, 0, 0, 0, 15, 0])


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"size": -1}, ValueError, "-1"),
        ({"size": 4, "padding": (1, 2, 3)}, ValueError, r"\(1, 2, 3\)"),
        ({"size": 4, "padding": 1.5}, ValueError, "1.5"),
        ({"size": 4, "padding_mode": "wrap"}, ValueError, "'wrap'"),
        ({"size": 4, "fill": {torch.Tensor: 1}}, TypeError, "dict"),
        ({"size": 4, "fill": (1, 2, 3), "padding_mode": "edge"}, ValueError, "edge"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(
    arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        RandomCrop(**arguments)
