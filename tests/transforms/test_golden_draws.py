"""Golden vectors of the drawn numbers: any change breaks every saved state."""

from __future__ import annotations

import numpy as np
import pytest

from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.randomness.philox import Stream, uniforms
from stateful_gpu_loader.transforms.color.blur import GaussianBlur
from stateful_gpu_loader.transforms.color.erasing import RandomErasing
from stateful_gpu_loader.transforms.geometry.affine import RandomAffine

POSITIONS = np.array([0, 1, 2**40 + 3])
SIZES = np.array([[375, 500], [1, 1], [20000, 20]])

GOLDEN = [
    (
        T.Resize(256),
        [[256, 341], [256, 256], [256000, 256]],
        [[256, 341], [256, 256], [256000, 256]],
    ),
    (
        T.CenterCrop(224),
        [[0, 0, 0, 0, 76, 138], [111, 111, 112, 112, 0, 0], [102, 0, 102, 0, 9888, 0]],
        [[224, 224]] * 3,
    ),
    (
        T.RandomCrop(32, padding=4, pad_if_needed=True),
        [[4, 4, 4, 4, 255, 323], [27, 27, 27, 27, 8, 20], [8, 4, 8, 4, 16293, 0]],
        [[32, 32]] * 3,
    ),
    (
        T.RandomResizedCrop(224),
        [[79, 162, 266, 262], [0, 0, 1, 1], [9986, 0, 27, 20]],
        [[224, 224]] * 3,
    ),
    (T.RandomHorizontalFlip(), [[0], [1], [0]], SIZES.tolist()),
    (T.RandomVerticalFlip(0.7), [[0], [1], [0]], SIZES.tolist()),
    (
        T.RandomRotation(30, expand=True),
        [[13.61333311535418], [-9.657738036476076], [18.93723299726844]],
        [[483, 576], [3, 3], [18924, 6510]],
    ),
    (
        T.ColorJitter(0.4, 0.3, 0.2, 0.1),
        [
            [
                2,
                3,
                1,
                0,
                1.1427721759304403,
                0.8908778174314648,
                0.8969776229001581,
                0.0504957941826433,
            ],
            [
                1,
                2,
                0,
                3,
                1.2730277778580783,
                1.1530191314872353,
                0.9671140117570758,
                0.017494952119886872,
            ],
            [
                3,
                0,
                2,
                1,
                0.6525310581550002,
                0.8929195993114263,
                0.9150305228307843,
                0.042373004928231234,
            ],
        ],
        SIZES.tolist(),
    ),
    (T.RandomGrayscale(0.5), [[0], [1], [0]], SIZES.tolist()),
    (T.Normalize([0.5], [0.5]), [[], [], []], SIZES.tolist()),
    (
        RandomAffine(30, (0.1, 0.2), (0.5, 2.0), (-5, 5, -3, 3)),
        [
            [
                13.61333311535418,
                18,
                -27,
                0.8636660858755931,
                2.5247897091321647,
                1.1944567691534758,
            ],
            [-9.657738036476076, 0, 0, 1.1266775440890342, 0.8747476059943438, 2.7630103854462504],
            [
                18.93723299726844,
                -2,
                -1428,
                0.9313644606154412,
                2.118650246411562,
                2.2981671919114888,
            ],
        ],
        SIZES.tolist(),
    ),
    (
        GaussianBlur(1),
        [[1.4810888819862158], [0.7441716288449243], [1.6496790449135006]],
        SIZES.tolist(),
    ),
    (
        RandomErasing(0.8, value="random"),
        [
            [179, 108, 111, 161, 3867114914, 4103767090],
            [0, 0, 0, 0, 1887163168, 1474660565],
            [0, 0, 0, 0, 895283194, 3243035460],
        ],
        SIZES.tolist(),
    ),
    (
        T.RandomZoomOut(p=0.7),
        [[0, 0, 0, 0], [1, 0, 1, 2], [0, 0, 0, 0]],
        [[375, 500], [3, 3], [20000, 20]],
    ),
    (
        T.RandomResize(260, 1040),
        [[826, 1101], [524, 524], [896000, 896]],
        [[826, 1101], [524, 524], [896000, 896]],
    ),
    (
        T.RandomShortestSize([480, 640, 800], 90000),
        [[800, 1066], [640, 640], [90000, 90]],
        [[800, 1066], [640, 640], [90000, 90]],
    ),
    (
        T.ScaleJitter((1024, 90000)),
        [[1137, 1516], [762, 762], [148471, 148]],
        [[1137, 1516], [762, 762], [148471, 148]],
    ),
    (
        T.RandomPerspective(p=0.9),
        [
            [1, 85, 29, 404, 70, 462, 355, 122, 369],
            [0, 0, 0, 0, 0, 0, 0, 0, 0],
            [1, 0, 1607, 15, 3560, 19, 19559, 4, 16430],
        ],
        SIZES.tolist(),
    ),
    (
        T.RandomPhotometricDistort(),
        [
            [0.0, 0.0, 1.0, 0.7424440572503954, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0],
            [1.0, 1.0853211805806495, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 2.0],
            [0.0, 0.0, 1.0, 0.7875763070769608, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 2.0],
        ],
        SIZES.tolist(),
    ),
]


@pytest.mark.parametrize(
    ("recipe", "numbers", "sizes"), GOLDEN, ids=[type(recipe).__name__ for recipe, *_ in GOLDEN]
)
def test_drawn_numbers(
    recipe: T.Recipe, numbers: list[list[float]], sizes: list[list[int]]
) -> None:
    """Exact, floats too: only sums and products are used."""
    drawn = recipe.draw(uniforms(42, 1, POSITIONS, Stream.RECIPES, recipe.num_draws), SIZES)
    assert drawn.numbers.tolist() == numbers
    assert drawn.sizes.tolist() == sizes


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
