"""Repeated augmentation: every sample several times, in the layout of the field's samplers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from stateful_gpu_loader.samplers import RepeatedSampler
from tests.map_datasets import Indices
from tests.samplers.statistics import assert_uniform


def order_of(n: int, epoch: int = 0, **arguments: Any) -> list[int]:
    order = RepeatedSampler(Indices(n), **arguments).order.of_epoch(5, epoch)
    drawn: list[int] = order(np.arange(order.n)).tolist()
    return drawn


@pytest.mark.parametrize("adjacent", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("num_repeats", [1, 2, 5])
def test_every_sample_comes_so_many_times(num_repeats: int, shuffle: bool, adjacent: bool) -> None:
    drawn = order_of(11, num_repeats=num_repeats, shuffle=shuffle, adjacent=adjacent)
    assert np.bincount(drawn).tolist() == [num_repeats] * 11
    if shuffle:
        other = order_of(11, 1, num_repeats=num_repeats, adjacent=adjacent)
        assert other != drawn
    if adjacent:
        assert all(len(set(copies)) == 1 for copies in np.reshape(drawn, (11, -1)).tolist())


def test_without_shuffling_the_dataset_keeps_its_order() -> None:
    assert order_of(3, num_repeats=2, shuffle=False) == [0, 0, 1, 1, 2, 2]
    assert order_of(3, num_repeats=2, shuffle=False, adjacent=False) == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("num_replicas", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("n", [300, 513])
def test_ranks_get_the_indices_of_the_usual_repeated_samplers(n: int, num_replicas: int) -> None:
    """The rule of DeiT, torchvision's RASampler and timm's RepeatAugSampler over one shuffle.

    Each index is repeated, and every num_replicas-th is taken. An epoch is as long as the dataset,
    rounded down to a multiple of 256.
    """
    num_repeats, one_rank = 3, n // 256 * 256 // num_replicas
    shuffled = order_of(n, num_repeats=1)
    repeated = [index for index in shuffled for _ in range(num_repeats)]
    padding = math.ceil(n * num_repeats / num_replicas) * num_replicas - len(repeated)
    repeated += repeated[:padding]
    ours = order_of(n, num_repeats=num_repeats, num_samples=n // 256 * 256)
    for rank in range(num_replicas):
        theirs = repeated[rank::num_replicas][:one_rank]
        assert ours[rank::num_replicas][:one_rank] == theirs


def test_copies_are_anywhere_with_equal_probability() -> None:
    distances = []
    for epoch in range(500):
        drawn = np.array(order_of(3, epoch, num_repeats=2, adjacent=False))
        first, second = np.flatnonzero(drawn == 0)
        distances.append(first * 6 + second)
    seen = np.bincount(distances, minlength=36)
    upper = [one * 6 + other for one in range(6) for other in range(one + 1, 6)]
    assert seen.sum() == seen[upper].sum()
    assert_uniform(seen[upper])


def test_after_all_copies_the_dataset_is_repeated_in_another_order() -> None:
    drawn = order_of(7, num_repeats=2, num_samples=31)
    assert len(drawn) == 31 == len(RepeatedSampler(Indices(7), 2, num_samples=31))
    assert sorted(drawn[:14]) == sorted(drawn[14:28])
    assert drawn[:14] != drawn[14:28]
    scattered = order_of(7, num_repeats=2, num_samples=31, adjacent=False)
    assert sorted(scattered[:14]) == sorted(scattered[14:28])
    assert scattered[:14] != scattered[14:28]


@pytest.mark.parametrize(
    ("n", "arguments", "message"),
    [
        (5, {"num_repeats": 0}, "num_repeats = 0"),
        (5, {"num_samples": 0}, "num_samples = 0"),
        (0, {}, r"len\(data_source\) = 0"),
    ],
)
def test_impossible_arguments_are_refused(n: int, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"{message} .*Remedy"):
        RepeatedSampler(Indices(n), **arguments)


def test_golden_repeats() -> None:
    assert order_of(4, 3, num_repeats=2) == GOLDEN
    assert order_of(4, 3, num_repeats=2, adjacent=False) == GOLDEN_ANYWHERE


GOLDEN = [2, 2, 1, 1, 3, 3, 0, 0]
GOLDEN_ANYWHERE = [1, 0, 3, 2, 3, 1, 2, 0]
