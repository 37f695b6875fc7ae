"""TrivialAugmentWide and RandAugment: their numbers, and torchvision's for them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import v2

from stateful_gpu_loader.randomness.philox import Stream, uniforms
from stateful_gpu_loader.transforms.policies import Operation, RandAugment, TrivialAugmentWide
from stateful_gpu_loader.transforms.recipe import Recipe
from tests.transforms.pictures import decoded, noise, rows_for, sizes_of

NAMES = list(v2.TrivialAugmentWide._AUGMENTATION_SPACE)
HAS_FMA = torch.backends.cpu.get_cpu_capability() != "DEFAULT"


def torchvisions_draws(
    monkeypatch: pytest.MonkeyPatch, reference: v2.Transform, height: int, width: int, n: int
) -> list[list[tuple[str, float]]]:
    """What torchvision's own ``forward`` asks for, call by call."""
    calls: list[tuple[str, float]] = []

    def record(image: Any, name: str, magnitude: float, **_: Any) -> Any:
        calls.append((name, magnitude))
        return image

    monkeypatch.setattr(reference, "_apply_image_or_video_transform", record)
    image = torch.empty(3, height, width, dtype=torch.uint8)
    drawn = []
    for _ in range(n):
        reference(image)
        drawn.append(calls.copy())
        calls.clear()
    return drawn


@pytest.mark.parametrize("num_bins", [2, 10, 31])
@pytest.mark.parametrize("size", [(224, 224), (331, 100), (63, 1000)])
def test_every_magnitude_is_torchvisions(num_bins: int, size: tuple[int, int]) -> None:
    """Each bin of each operation, as float32; the last bit where torch has FMA."""
    for bin_ in range(num_bins):
        trivial, rand = TrivialAugmentWide(num_bins), RandAugment(1, bin_, num_bins)
        for operation, name in enumerate(NAMES):
            chosen, positive = (operation + 0.5) / 14, 0.75
            sizes = np.array([size])
            row = [[chosen, (bin_ + 0.5) / num_bins, positive]]
            ours = [
                (TrivialAugmentWide, trivial.draw(np.array(row), sizes)),
                (RandAugment, rand.draw(np.array([[chosen, positive]]), sizes)),
            ]
            for kind, drawn in ours:
                space = getattr(v2, kind.__name__)._AUGMENTATION_SPACE
                line = space[name][0](num_bins, *size)
                expected = 0.0 if line is None else float(line[bin_])
                assert drawn.numbers[0, 0] == operation
                tolerance = 0.0 if HAS_FMA else 1e-6
                assert drawn.numbers[0, 1] == pytest.approx(expected, abs=0, rel=tolerance)


def test_only_directions_are_turned_about() -> None:
    """By the last uniform of an operation."""
    for operation, name in enumerate(NAMES):
        row = np.array([[(operation + 0.5) / 14, 0.75, 0.25], [(operation + 0.5) / 14, 0.75, 0.5]])
        one, other = TrivialAugmentWide().draw(row, np.array([[9, 9]] * 2)).numbers[:, 1]
        assert one == (-other if v2.TrivialAugmentWide._AUGMENTATION_SPACE[name][1] else other)


def test_trivial_numbers_are_distributed_as_torchvisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chi-square of the operations, Kolmogorov-Smirnov of each one's magnitudes."""
    torch.manual_seed(2)
    n = 14000
    ours = rows_for(TrivialAugmentWide(), noise(200, 300), n)
    theirs = torchvisions_draws(monkeypatch, v2.TrivialAugmentWide(), 200, 300, n)
    assert_same_distribution(ours, [calls[0] for calls in theirs])


def test_rand_numbers_are_distributed_as_torchvisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the operations, first and last, and their pairs."""
    torch.manual_seed(3)
    n = 6000
    ours = rows_for(RandAugment(2, 14), noise(200, 300), n)
    theirs = torchvisions_draws(monkeypatch, v2.RandAugment(2, 14), 200, 300, n)
    for place in range(2):
        columns = [row[2 * place : 2 * place + 2] for row in ours]
        assert_same_distribution(columns, [calls[place] for calls in theirs])
    our_pairs = Counter((NAMES[int(row[0])], NAMES[int(row[2])]) for row in ours)
    their_pairs = Counter((first[0], second[0]) for first, second in theirs)
    assert_same_counts(our_pairs, their_pairs)


def assert_same_distribution(ours: list[list[float]], theirs: list[tuple[str, float]]) -> None:
    assert_same_counts(Counter(NAMES[int(o)] for o, _ in ours), Counter(name for name, _ in theirs))
    for operation, name in enumerate(NAMES):
        one = [magnitude for o, magnitude in ours if o == operation]
        other = [magnitude for n, magnitude in theirs if n == name]
        assert stats.ks_2samp(one, other).pvalue > 1e-4


def assert_same_counts(ours: Counter[Any], theirs: Counter[Any]) -> None:
    kinds = sorted(theirs)
    assert sorted(ours) == kinds
    table = [[count[kind] for kind in kinds] for count in (ours, theirs)]
    assert stats.chi2_contingency(table).pvalue > 1e-3


POLICIES = [
    TrivialAugmentWide(),
    TrivialAugmentWide(11, "bilinear", (1, 2, 3)),
    RandAugment(),
    RandAugment(3, 20, interpolation="bilinear", fill=9),
    RandAugment(0),
]


@pytest.mark.parametrize("recipe", POLICIES, ids=repr)
def test_a_batch_is_its_images_one_by_one(recipe: Recipe) -> None:
    """Bit for bit, through all operations."""
    n = 60
    images = torch.stack([decoded("coffee")[:, i : i + 40, i : i + 40] for i in range(n)])
    drawn = recipe.draw(
        uniforms(1, 2, np.arange(n), Stream.RECIPES, recipe.num_draws), sizes_of(list(images))
    )
    assert np.array_equal(drawn.sizes, sizes_of(list(images)))
    made = recipe.apply_batch(images, drawn.numbers)
    alone = [recipe.apply(i, row) for i, row in zip(images, drawn.numbers.tolist(), strict=True)]
    assert torch.equal(made, torch.stack(alone))


def test_operations_follow_each_other() -> None:
    """The second works on what the first made."""
    image = decoded("coffee")[:, :50, :60]
    brightened = v2.functional.adjust_brightness(image, 1.3)
    numbers = [Operation.BRIGHTNESS, 0.3, Operation.EQUALIZE, 0.0]
    made = RandAugment().apply(image, numbers)
    assert torch.equal(made, v2.functional.equalize(brightened))


GOLDEN: list[tuple[Recipe, list[list[float]]]] = [
    (
        TrivialAugmentWide(),
        [
            [10.0, 4.0],
            [4.0, 27.733333587646484],
            [11.0, 0.9333333373069763],
            [11.0, 0.06666667014360428],
        ],
    ),
    (
        RandAugment(2, 10),
        [
            [10.0, 7.0, 4.0, -56.646522521972656],
            [4.0, 0.1510574072599411, 10.0, 7.0],
            [11.0, 0.6666666269302368, 4.0, -3021.14794921875],
            [11.0, 0.6666666269302368, 10.0, 7.0],
        ],
    ),
]


@pytest.mark.parametrize(("recipe", "numbers"), GOLDEN, ids=["TrivialAugmentWide", "RandAugment"])
def test_golden_numbers(recipe: Recipe, numbers: list[list[float]]) -> None:
    """A change of any breaks every saved state."""
    positions = np.array([0, 1, 2**40 + 3, 5])
    sizes = np.array([[375, 500], [1, 1], [20000, 20], [224, 224]])
    drawn = recipe.draw(uniforms(42, 1, positions, Stream.RECIPES, recipe.num_draws), sizes)
    assert drawn.numbers.tolist() == numbers


@pytest.mark.parametrize(
    ("kind", "arguments", "error", "match"),
    [
        (TrivialAugmentWide, {"num_magnitude_bins": 1}, ValueError, "at least 2"),
        (TrivialAugmentWide, {"num_magnitude_bins": 3.5}, TypeError, "float"),
        (TrivialAugmentWide, {"interpolation": "bicubic"}, ValueError, "bicubic"),
        (TrivialAugmentWide, {"fill": {"others": 1}}, TypeError, "dict"),
        (RandAugment, {"num_ops": -1}, ValueError, "num_ops = -1"),
        (RandAugment, {"num_ops": 1.5}, TypeError, "float"),
        (RandAugment, {"magnitude": 31}, ValueError, "magnitude = 31"),
        (RandAugment, {"magnitude": -1}, ValueError, "magnitude = -1"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(
    kind: type[Recipe], arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        kind(**arguments)


def test_fingerprint_is_canonical() -> None:
    """Golden, since states hold it."""
    assert TrivialAugmentWide().fingerprint() == (
        "TrivialAugmentWide(num_magnitude_bins=31, interpolation='nearest', fill=None)"
    )
    assert RandAugment(np.int64(2), fill=[1, 2, 3]).fingerprint() == (
        "RandAugment(num_ops=2, magnitude=9, num_magnitude_bins=31, interpolation='nearest', "
        "fill=(1.0, 2.0, 3.0))"
    )
