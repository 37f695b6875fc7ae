"""ColorJitter and RandomGrayscale."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader.transforms import ColorJitter, RandomGrayscale
from tests.images import PHOTOGRAPHS
from tests.transforms.pictures import ODD_SIZES, as_float, decoded, noise, rows_for

JITTER = (0.4, 0.4, 0.4, 0.1)
FUNCTIONALS = [F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue]


def by_torchvision(image: Tensor, numbers: list[float]) -> Tensor:
    for operation in map(int, numbers[:4]):
        image = FUNCTIONALS[operation](image, numbers[4 + operation])
    return image


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_jitter_on_photographs(name: str) -> None:
    """Within one level of torchvision, whose mean is a float32; in fact all levels are its."""
    image = decoded(name)[:, :224, :224]
    for numbers in rows_for(ColorJitter(*JITTER), image, 6):
        made, expected = ColorJitter(*JITTER).apply(image, numbers), by_torchvision(image, numbers)
        assert (made.int() - expected.int()).abs().max() <= 1
        assert (made != expected).float().mean() < 1e-4


@pytest.mark.parametrize("name", ["astronaut", "coffee"])
def test_jitter_on_float(name: str) -> None:
    """Within 1e-6 of torchvision for each of the four; hue as torchvision to the bit."""
    image = as_float(decoded(name)[:, :101, :97])
    for operation, functional in enumerate(FUNCTIONALS):
        arguments = [None] * 4
        arguments[operation] = 0.4
        for numbers in rows_for(ColorJitter(*arguments), image, 4):
            made = ColorJitter(*arguments).apply(image, numbers)
            expected = functional(image, numbers[4 + operation])
            torch.testing.assert_close(made, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", ODD_SIZES)
@pytest.mark.parametrize("channels", [1, 3])
def test_jitter_on_odd_images(size: tuple[int, int], channels: int) -> None:
    image = noise(*size, channels=channels)
    for numbers in rows_for(ColorJitter(*JITTER), image, 2):
        made, expected = ColorJitter(*JITTER).apply(image, numbers), by_torchvision(image, numbers)
        assert (made.int() - expected.int()).abs().max() <= 1


def test_contrast_blends_with_the_exact_mean() -> None:
    """97 * 1601 * 1743 is no float32, by which the mean would fall to 96.99999."""
    image = torch.full((1, 1601, 1743), 97, dtype=torch.uint8)
    made = ColorJitter(contrast=(0.0, 0.0)).apply(image, [0, 1, 2, 3, 1.0, 0.0, 1.0, 0.0])
    assert (made == 97).all()


def test_grey_of_every_color_is_torchvisions() -> None:
    """Bit for bit, for one red in sixteen and all greens and blues."""
    levels = torch.arange(256, dtype=torch.uint8)
    greens, blues = levels.view(1, -1, 1), levels.view(1, 1, -1)
    for red in range(3, 256, 16):
        reds = torch.full((1, 256, 256), red, dtype=torch.uint8)
        image = torch.cat([reds, greens.expand(1, 256, 256), blues.expand(1, 256, 256)])
        assert torch.equal(RandomGrayscale().apply(image, [1])[:1], F.rgb_to_grayscale(image))


@pytest.mark.fuzz
@pytest.mark.parametrize("size", [(224, 224), (479, 641)])
def test_result_does_not_depend_on_the_number_of_threads(size: tuple[int, int]) -> None:
    """Worker threads run with as many intra-op threads as the process has."""
    image = noise(*size)
    for pixels in (image, as_float(image), as_float(image).contiguous()):
        for recipe in (ColorJitter(*JITTER), ColorJitter(contrast=0.9), RandomGrayscale(1.0)):
            for numbers in rows_for(recipe, pixels, 2):
                torch.set_num_threads(1)
                alone = recipe.apply(pixels, numbers)
                torch.set_num_threads(2)
                assert torch.equal(recipe.apply(pixels, numbers), alone)


def test_only_what_was_asked_for_changes() -> None:
    """A property of None is left alone in whatever place it comes."""
    image = decoded("coffee")
    for numbers in rows_for(ColorJitter(hue=0.1), image, 2):
        expected = F.adjust_hue(image, numbers[7])
        assert torch.equal(ColorJitter(hue=0.1).apply(image, numbers), expected)
    assert ColorJitter().apply(image, rows_for(ColorJitter(), image, 1)[0]) is image


def test_orders_and_factors_are_distributed_as_torchvisions() -> None:
    """Chi-square of the 24 orders, Kolmogorov-Smirnov of each factor."""
    torch.manual_seed(4)
    n = 6000
    ours = rows_for(ColorJitter(*JITTER), noise(2, 2), n)
    reference = v2.ColorJitter(*JITTER)
    theirs = [reference.make_params([]) for _ in range(n)]
    our_orders = Counter(tuple(map(int, row[:4])) for row in ours)
    their_orders = Counter(tuple(params["fn_idx"].tolist()) for params in theirs)
    orders = sorted(our_orders)
    assert len(orders) == 24
    table = [[count[order] for order in orders] for count in (our_orders, their_orders)]
    assert stats.chi2_contingency(table).pvalue > 1e-3
    for column, name in enumerate(["brightness", "contrast", "saturation", "hue"], start=4):
        theirs_of_it = [params[f"{name}_factor"] for params in theirs]
        assert stats.ks_2samp([row[column] for row in ours], theirs_of_it).pvalue > 1e-3


@pytest.mark.parametrize("arguments", [{}, {"brightness": 2.0}, {"brightness": (0.5, 3)}])
@pytest.mark.parametrize("name", ["contrast", "saturation", "hue"])
def test_ranges_are_torchvisions(arguments: dict[str, Any], name: str) -> None:
    """One number, a pair, None, and a range that changes nothing."""
    for value in (0.3, (0.1, 0.2), 0, None):
        recipe = ColorJitter(**arguments, **{name: value})
        reference = v2.ColorJitter(**arguments, **{name: value})
        for attribute in ("brightness", "contrast", "saturation", "hue"):
            assert getattr(recipe, attribute) == getattr(reference, attribute)


@pytest.mark.parametrize("channels", [1, 3])
def test_grayscale_is_torchvisions(channels: int) -> None:
    """Bit for bit, as many channels as before."""
    for image in (decoded("coffee"), as_float(decoded("rocket")), noise(37, 53)):
        pixels = image[:channels]
        expected = F.rgb_to_grayscale(pixels, num_output_channels=channels)
        assert torch.equal(RandomGrayscale().apply(pixels, [1]), expected)
        assert RandomGrayscale().apply(pixels, [0]) is pixels


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"brightness": -0.1}, ValueError, "-0.1"),
        ({"contrast": (-0.1, 1)}, ValueError, "negative"),
        ({"saturation": (2, 1)}, ValueError, "in order"),
        ({"hue": 0.6}, ValueError, "0.6"),
        ({"hue": -0.1}, ValueError, "negative"),
        ({"brightness": "0.4"}, TypeError, "'0.4'"),
        ({"brightness": (1, 2, 3)}, TypeError, "two numbers"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(
    arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        ColorJitter(**arguments)


def test_two_channels_are_refused() -> None:
    """As torchvision refuses them."""
    with pytest.raises(TypeError, match="2 channels"):
        ColorJitter(contrast=0.5).apply(noise(4, 4, 2), [0, 1, 2, 3, 1.0, 0.5, 1.0, 0.0])
