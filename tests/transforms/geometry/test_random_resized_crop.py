"""RandomResizedCrop: torchvision's algorithm, with a fixed budget of draws."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader.transforms import RandomResizedCrop
from tests.torchvisions_words import in_torchvisions_words
from tests.transforms.pictures import ODD_SIZES, as_float, decoded, noise, rows_for


@pytest.mark.parametrize("name", ["astronaut", "coffee", "rocket", "china"])
@pytest.mark.parametrize(
    "arguments",
    [{}, {"interpolation": "bicubic"}, {"interpolation": "nearest"}, {"antialias": False}],
    ids=str,
)
def test_pixels_are_torchvisions(name: str, arguments: dict[str, Any]) -> None:
    """Bit for bit on uint8 and on float."""
    recipe = RandomResizedCrop((96, 64), **arguments)
    for image in (decoded(name), as_float(decoded(name))):
        for numbers in rows_for(recipe, image, 8):
            expected = F.resized_crop(image, *numbers, [96, 64], **in_torchvisions_words(arguments))
            assert torch.equal(recipe.apply(image, numbers), expected)


@pytest.mark.parametrize("size", [*ODD_SIZES, (20000, 20), (20, 20000)])
def test_odd_images(size: tuple[int, int]) -> None:
    """Boxes lie inside and have pixels, whatever the image's shape."""
    image, recipe = noise(*size), RandomResizedCrop(32)
    for numbers in rows_for(recipe, image, 20):
        top, left, height, width = numbers
        assert height >= 1
        assert width >= 1
        assert 0 <= top <= size[0] - height
        assert 0 <= left <= size[1] - width
        assert torch.equal(recipe.apply(image, numbers), F.resized_crop(image, *numbers, [32, 32]))


def torchvision_boxes(reference: v2.RandomResizedCrop, image: torch.Tensor, n: int) -> np.ndarray:
    params = [reference.make_params([image]) for _ in range(n)]
    return np.array([[p["top"], p["left"], p["height"], p["width"]] for p in params])


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("size", "arguments"),
    [
        ((375, 500), {}),
        ((333, 77), {}),
        ((240, 320), {"scale": (0.5, 1.0), "ratio": (0.5, 2.0)}),
        ((240, 320), {"scale": (0.9, 1.3)}),
    ],
    ids=str,
)
def test_boxes_are_distributed_as_torchvisions(
    size: tuple[int, int], arguments: dict[str, Any]
) -> None:
    """Kolmogorov-Smirnov of top, left, height, width, area, log of the aspect ratio."""
    torch.manual_seed(1)
    image = torch.empty(1, *size)
    n = 4000
    ours = np.array(rows_for(RandomResizedCrop(8, **arguments), image, n))
    theirs = torchvision_boxes(v2.RandomResizedCrop(8, **arguments), image, n)

    def statistics(boxes: np.ndarray) -> list[np.ndarray]:
        heights, widths = boxes[:, 2], boxes[:, 3]
        return [*boxes.T, heights * widths, np.log(widths / heights)]

    for a, b in zip(statistics(ours), statistics(theirs), strict=True):
        assert stats.ks_2samp(a, b).pvalue > 1e-3


@pytest.mark.parametrize("size", [(3, 4), (2, 9)])
def test_every_box_of_a_tiny_image_is_as_likely_as_with_torchvision(size: tuple[int, int]) -> None:
    """Chi-square over whole boxes, where rounding and the fallback decide; places included."""
    torch.manual_seed(2)
    image, n = torch.empty(1, *size), 6000
    ours = Counter(map(tuple, rows_for(RandomResizedCrop(8), image, n)))
    boxes = torchvision_boxes(v2.RandomResizedCrop(8), image, n)
    theirs = Counter(map(tuple, boxes.tolist()))
    often = [box for box in ours | theirs if ours[box] + theirs[box] >= 20]
    rare = [sum(count.values()) - sum(count[box] for box in often) for count in (ours, theirs)]
    table = np.array([[count[box] for box in often] for count in (ours, theirs)])
    assert stats.chi2_contingency(table).pvalue > 1e-3
    assert max(rare) < 0.02 * n


@pytest.mark.parametrize(
    ("size", "ratio"), [((20, 2000), (0.75, 4 / 3)), ((2000, 20), (0.75, 4 / 3)), ((9, 9), (1, 1))]
)
def test_fallback_is_torchvisions(size: tuple[int, int], ratio: tuple[float, float]) -> None:
    """Where no attempt fits, the central box; a scale beyond the image forces it."""
    arguments = {"scale": (5.0, 6.0), "ratio": ratio}
    image = torch.empty(1, *size)
    (expected,) = torchvision_boxes(v2.RandomResizedCrop(8, **arguments), image, 1).tolist()
    assert rows_for(RandomResizedCrop(8, **arguments), image, 3) == [expected] * 3


def test_first_fitting_attempt_is_taken() -> None:
    """A later attempt's draws do not matter once one fits; an earlier one's misfit does."""
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


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"scale": 0.5}, TypeError, "scale=0.5"),
        ({"scale": (0.5, 0.6, 0.7)}, TypeError, "two numbers"),
        ({"scale": (1.0, 0.5)}, ValueError, "in order"),
        ({"scale": (-0.5, 0.5)}, ValueError, "negative"),
        ({"ratio": (2.0, 1.0)}, ValueError, "in order"),
        ({"ratio": (0.0, 1.0)}, ValueError, "positive"),
        ({"ratio": (1.0, math.inf)}, ValueError, "finite"),
        ({"interpolation": "hamming"}, ValueError, "hamming"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(
    arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        RandomResizedCrop(224, **arguments)
