"""Golden vectors of the drawn numbers: any change breaks every saved state."""

from __future__ import annotations

import numpy as np
import pytest

from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.randomness.philox import Stream, uniforms

POSITIONS = np.array([0, 1, 2**40 + 3])
SIZES = np.array([[375, 500], [1, 1], [20000, 20]])

GOLDEN = [
    (T.Resize(256), "256 341 | 256 256 | 256000 256", "256 341 | 256 256 | 256000 256"),
    (
        T.CenterCrop(224),
        "0 0 0 0 76 138 | 111 111 112 112 0 0 | 102 0 102 0 9888 0",
        "224 224 | 224 224 | 224 224",
    ),
    (
        T.RandomCrop(32, padding=4, pad_if_needed=True),
        "4 4 4 4 255 323 | 27 27 27 27 8 20 | 8 4 8 4 16293 0",
        "32 32 | 32 32 | 32 32",
    ),
    (
        T.RandomResizedCrop(224),
        "79 162 266 262 | 0 0 1 1 | 9986 0 27 20",
        "224 224 | 224 224 | 224 224",
    ),
    (T.RandomHorizontalFlip(), "0 | 1 | 0"),
    (T.RandomVerticalFlip(0.7), "0 | 1 | 0"),
    (
        T.RandomRotation(30, expand=True),
        "13.61333311535418 | -9.657738036476076 | 18.93723299726844",
        "483 576 | 3 3 | 18924 6510",
    ),
    (
        T.ColorJitter(0.4, 0.3, 0.2, 0.1),
        "2 3 1 0 1.1427721759304403 0.8908778174314648 0.8969776229001581 0.0504957941826433 | 1 "
        "2 0 3 1.2730277778580783 1.1530191314872353 0.9671140117570758 0.017494952119886872 | 3 "
        "0 2 1 0.6525310581550002 0.8929195993114263 0.9150305228307843 0.042373004928231234",
    ),
    (T.RandomGrayscale(0.5), "0 | 1 | 0"),
    (T.Normalize([0.5], [0.5]), " |  | "),
    (
        T.RandomAffine(30, (0.1, 0.2), (0.5, 2.0), (-5, 5, -3, 3)),
        "13.61333311535418 18 -27 0.8636660858755931 2.5247897091321647 1.1944567691534758 | "
        "-9.657738036476076 0 0 1.1266775440890342 0.8747476059943438 2.7630103854462504 | "
        "18.93723299726844 -2 -1428 0.9313644606154412 2.118650246411562 2.2981671919114888",
    ),
    (T.GaussianBlur(1), "1.4810888819862158 | 0.7441716288449243 | 1.6496790449135006"),
    (
        T.RandomErasing(0.8, value="random"),
        "179 108 111 161 3867114914 4103767090 | 0 0 0 0 1887163168 1474660565 | 0 0 0 0 "
        "895283194 3243035460",
    ),
    (T.RandomZoomOut(p=0.7), "0 0 0 0 | 1 0 1 2 | 0 0 0 0", "375 500 | 3 3 | 20000 20"),
    (
        T.RandomResize(260, 1040),
        "826 1101 | 524 524 | 896000 896",
        "826 1101 | 524 524 | 896000 896",
    ),
    (
        T.RandomShortestSize([480, 640, 800], 90000),
        "800 1066 | 640 640 | 90000 90",
        "800 1066 | 640 640 | 90000 90",
    ),
    (
        T.ScaleJitter((1024, 90000)),
        "1137 1516 | 762 762 | 148471 148",
        "1137 1516 | 762 762 | 148471 148",
    ),
    (
        T.RandomPerspective(p=0.9),
        "1 85 29 404 70 462 355 122 369 | 0 0 0 0 0 0 0 0 0 | 1 0 1607 15 3560 19 19559 4 16430",
    ),
    (
        T.RandomPhotometricDistort(),
        "0 0 1 0.7424440572503954 0 0 0 0 0 0 1 2 | 1 1.0853211805806495 0 0 0 0 0 0 1 0 1 2 | 0 "
        "0 1 0.7875763070769608 0 0 0 0 1 1 0 2",
    ),
    (T.JPEG((10, 90)), "68 | 37 | 76"),
    (T.TrivialAugmentWide(), "10 4 | 4 27.733333587646484 | 11 0.9333333373069763"),
    (
        T.RandAugment(2, 10),
        "10 7 4 -56.646522521972656 | 4 0.1510574072599411 10 7 | 11 0.6666666269302368 4 "
        "-3021.14794921875",
    ),
    (T.AutoAugment(), "0 0 13 0 | 0 0 0 0 | 13 0 0 0"),
    (
        T.AugMix(mixture_width=2, chain_depth=1),
        "0.72688889503479 0.20419901609420776 0.0689120888710022 6 0.19999998807907104 9 0 | "
        "0.3390377163887024 0.37465184926986694 0.28631043434143066 9 0.19999998807907104 1 "
        "-0.03333333507180214 | 0.8156205415725708 0.027472198009490967 0.15690726041793823 8 "
        "0.19999998807907104 4 0",
    ),
    (
        T.AugMix(alpha=0.3, mixture_width=1),
        "0.9103398323059082 0.0896601676940918 4 27.77777862548828 0 0 0 0 | 0.17508459091186523 "
        "0.8249154090881348 10 4 8 -0.19999998807907104 12 0 | 0.9749000072479248 "
        "0.025099992752075195 4 1481.4814453125 0 0 0 0",
    ),
    (
        T.RandomApply([T.RandomCrop(1), T.RandomRotation(30)], p=0.9),
        "1 0 0 0 0 254 159 1 1 -15.453356564976275 | 1 0 0 0 0 0 0 1 1 -4.932898236438632 | 1 0 0 "
        "0 0 1313 6 1 1 -12.745421575382352",
        "1 1 | 1 1 | 1 1",
    ),
    (
        T.RandomChoice(
            [T.RandomResizedCrop(48), T.RandomResizedCrop(48, interpolation="bicubic")], [1, 3]
        ),
        "1 0 0 0 0 0 96 375 400 | 1 0 0 0 0 0 0 1 1 | 1 0 0 0 0 9986 0 27 20",
        "48 48 | 48 48 | 48 48",
    ),
    (
        T.RandomOrder([T.RandomCrop(1), T.RandomHorizontalFlip()]),
        "1 0 375 500 0 0 0 0 119 121 0 | 0 1 1 1 0 0 0 0 0 0 0 | 1 0 20000 20 0 0 0 0 6430 5 0",
        "1 1 | 1 1 | 1 1",
    ),
]
"""Recipe; the numbers of each sample; the sizes of the results, if they differ from the images'."""


def _rows(text: str) -> list[list[float]]:
    """Return the numbers of a text, a row for each part between bars."""
    return [[float(number) for number in row.split()] for row in text.split("|")]


@pytest.mark.parametrize("golden", GOLDEN, ids=[type(recipe).__name__ for recipe, *_ in GOLDEN])
def test_drawn_numbers(golden: tuple[T.Recipe, str, str] | tuple[T.Recipe, str]) -> None:
    """Exact, floats too: only sums and products are used."""
    recipe, numbers, *sizes = golden
    drawn = recipe.draw(uniforms(42, 1, POSITIONS, Stream.RECIPES, recipe.num_draws), SIZES)
    assert drawn.numbers.tolist() == _rows(numbers)
    assert drawn.sizes.tolist() == (_rows(*sizes) if sizes else SIZES.tolist())


def test_drawn_pipeline() -> None:
    """Seed, epoch, position and the place in the pipeline address the numbers."""
    pipeline = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.RandomRotation(15)])
    drawn = pipeline.draw(42, 1, POSITIONS, SIZES)
    assert [drawn.sample(i) for i in range(3)] == [
        ([79, 162, 266, 262], [0], [-11.610320687759668]),
        ([0, 0, 1, 1], [1], [6.457775537855923]),
        ([9986, 0, 27, 20], [1], [-12.563756613526493]),
    ]


def test_many_boxes() -> None:
    """A thousand boxes at once, by their sums."""
    positions = np.arange(1000)
    sizes = np.stack((200 + positions, 900 - positions // 2), axis=1)
    boxes = T.Compose([T.RandomResizedCrop(224)]).draw(7, 0, positions, sizes).draws[0].numbers
    assert boxes.sum(axis=0).tolist() == [165790, 145570, 366777, 364422]
    assert (boxes * positions[:, None] % 9973).sum() == 18712349
