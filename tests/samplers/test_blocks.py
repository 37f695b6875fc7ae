"""Shuffling that respects blocks: exact, uniform within its windows, and local."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest

from stateful_gpu_loader.randomness.permutation import Permutation, permuted
from stateful_gpu_loader.samplers import Blocks, ShuffledSampler
from tests.map_datasets import Indices
from tests.samplers.statistics import assert_uniform

LAYOUTS = [
    (10, 3),
    (9, 3),
    (1, 5),
    (7, 1),
    (100, 8),
    (6, 100),
    (23, [5, 0, 3, 7, 0, 0, 8]),
    (4, [0, 4]),
    (4, [1, 1, 1, 1]),
]


def order_of(n: int, lengths: int | list[int], window: int, seed: int, epoch: int = 0) -> list[int]:
    sampler = ShuffledSampler(Indices(n), seed=seed, locality=Blocks(lengths, window=window))
    order: list[int] = sampler.order.of_epoch(seed, epoch)(np.arange(n)).tolist()
    return order


def contents(n: int, lengths: int | list[int]) -> list[range]:
    """Return the indices of each block."""
    if isinstance(lengths, int):
        lengths = [min(lengths, n - start) for start in range(0, n, lengths)]
    edges = np.cumsum([0, *lengths]).tolist()
    return [range(start, end) for start, end in pairwise(edges)]


@pytest.mark.fuzz
@pytest.mark.parametrize("window", [1, 2, 3, 50])
@pytest.mark.parametrize(("n", "lengths"), LAYOUTS)
def test_it_is_blocks_permuted_and_windows_of_them_permuted(
    n: int, lengths: int | list[int], window: int
) -> None:
    """Compared with the definition, written out."""
    for seed, epoch in ((0, 0), (1, 0), (-3, 9)):
        blocks = contents(n, lengths)
        turns = Permutation(len(blocks), seed=seed, epoch=epoch)(np.arange(len(blocks))).tolist()
        expected: list[int] = []
        for number, first in enumerate(range(0, len(blocks), window)):
            mixed = [i for block in turns[first : first + window] for i in blocks[block]]
            order = np.arange(len(mixed))
            if mixed:
                order = permuted(order, len(mixed), seed=seed, epoch=epoch, numbers=number)
            expected += [mixed[i] for i in order]
        assert order_of(n, lengths, window, seed, epoch) == expected
        assert sorted(expected) == list(range(n))


@pytest.mark.fuzz
def test_every_pair_of_blocks_shares_a_window_equally_often() -> None:
    num_blocks, window = 6, 3
    shared = np.zeros((num_blocks, num_blocks))
    for seed in range(500):
        first = {index // 4 for index in order_of(24, 4, window, seed)[: 4 * window]}
        for one in first:
            for other in first - {one}:
                shared[one, other] += 1
    assert_uniform(shared[np.triu_indices(num_blocks, 1)])


@pytest.mark.fuzz
@pytest.mark.parametrize("lengths", [2, [1, 3]])
def test_within_a_window_every_order_is_equally_frequent(lengths: int | list[int]) -> None:
    places = {order: i for i, order in enumerate(permutations(range(4)))}
    seen = [places[tuple(order_of(4, lengths, 2, seed))] for seed in range(25 * len(places))]
    assert_uniform(np.bincount(seen, minlength=len(places)))


@pytest.mark.fuzz
def test_every_block_comes_first_equally_often_and_windows_are_independent() -> None:
    """Also a shorter block."""
    orders = np.array([order_of(10, [4, 4, 2], 1, seed) for seed in range(500)])
    assert_uniform(np.bincount(orders[:, 0] // 4, minlength=3))
    whole = orders[orders[:, -1] >= 8]  # the shorter block comes last
    assert_uniform(np.bincount(whole[:, 0] % 4 * 4 + whole[:, 4] % 4, minlength=16))


def test_a_source_may_name_its_blocks() -> None:
    class RowGroups(Indices):
        def block_lengths(self) -> np.ndarray:  # type: ignore[type-arg]
            return np.array([4, 4, 2])

    source = RowGroups(10)
    sampler = ShuffledSampler(source, seed=1, locality=Blocks.of(source, window=2))
    assert list(sampler) == order_of(10, [4, 4, 2], 2, seed=1)
    with pytest.raises(TypeError, match=r"Indices .*block_lengths"):
        Blocks.of(Indices(10))  # type: ignore[arg-type]


def test_the_table_of_an_epoch_is_made_once_and_kept() -> None:
    order = ShuffledSampler(Indices(23), locality=Blocks([5, 0, 3, 7, 0, 0, 8])).order
    assert order.of_epoch(1, 2) is order.of_epoch(1, 2)
    assert order.of_epoch(1, 3) is not order.of_epoch(1, 2)


@pytest.mark.parametrize(
    ("lengths", "window", "message"),
    [
        (0, 2, r"\b0\b"),
        (-3, 2, "-3"),
        ([3, -1], 2, "-1"),
        (2.5, 2, "dtype float64"),
        ([[1, 2]], 2, r"shape \(1, 2\)"),
        (3, 0, "window = 0"),
    ],
)
def test_impossible_blocks_are_refused(lengths: object, window: int, message: str) -> None:
    with pytest.raises(ValueError, match=rf"{message}.*Remedy"):
        Blocks(lengths, window=window)  # type: ignore[arg-type]


def test_blocks_of_another_dataset_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\b9\b.*\b10\b"):
        ShuffledSampler(Indices(10), locality=Blocks([4, 5]))
    with pytest.raises(ValueError, match=r"Remedy"):
        ShuffledSampler(Indices(2**62), locality=Blocks(5))
    with pytest.raises(TypeError, match=r"locality=5"):
        ShuffledSampler(Indices(10), locality=5)  # type: ignore[arg-type]
    for arguments in ({"replacement": True}, {"num_samples": 5}):
        with pytest.raises(ValueError, match=r"Remedy"):
            ShuffledSampler(Indices(10), locality=Blocks(5), **arguments)


@pytest.mark.parametrize("position", [-1, 10])
def test_a_position_outside_the_epoch_is_refused(position: int) -> None:
    order = ShuffledSampler(Indices(10), locality=Blocks(3)).order.of_epoch(0, 0)
    with pytest.raises(IndexError, match=rf"range\(10\).*{position}"):
        order(np.array([5, position]))


def test_golden_blocks() -> None:
    assert order_of(17, 4, 2, seed=42, epoch=3) == GOLDEN
    ends = ShuffledSampler(Indices(10**15), locality=Blocks(10**6, window=8)).order.of_epoch(42, 3)
    assert ends(np.array([0, 10**15 - 1])).tolist() == GOLDEN_ENDS


GOLDEN = [0, 2, 6, 3, 1, 7, 5, 4, 16, 13, 15, 12, 14, 11, 9, 8, 10]
GOLDEN_ENDS = [2822933200202, 147044098655007]
