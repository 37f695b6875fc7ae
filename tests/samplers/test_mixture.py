"""The order of a mixture: proportions, the parts' own orders, and its state."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateful_gpu_loader.datasets.mixture import MixedDataset
from stateful_gpu_loader.samplers.mixture import MixtureEpoch, MixtureSampler
from tests.map_datasets import Indices
from tests.samplers.statistics import assert_uniform

GOLDEN = [
    [0, 8, 9, 12, 1, 4, 5, 2, 3, 11, 10, 7, 1, 2],
    [10, 11, 6, 0, 4, 12, 3, 2, 0, 9, 7, 3, 11, 1],
]
GOLDEN_NAME = (
    "mixture-1(shuffled, block_length=256, num_samples=14, 3 datasets of [5, 5, 1] samples,"
    " shares [0.5, 0.4, 0.1], a4a1c496104d1d65)"
)
WEIGHTS = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6)


def parts_of(mixed: MixedDataset, indices: Any) -> np.ndarray[Any, Any]:
    """Return the dataset of each index of the concatenation."""
    return np.searchsorted(np.array(mixed.cumulative_sizes), np.asarray(indices), side="right")


def in_part(mixed: MixedDataset, indices: list[int], part: int) -> list[int]:
    """Return the indices within one dataset, in the order in which they were drawn."""
    start = mixed.cumulative_sizes[part - 1] if part else 0
    drawn = parts_of(mixed, indices)
    return [
        index - start
        for index, number in zip(indices, drawn.tolist(), strict=True)
        if number == part
    ]


def assert_within_bound(mixed: MixedDataset, indices: list[int], *, shuffle: bool) -> None:
    """Check MixtureSampler's bound at every prefix, in exact arithmetic."""
    drawn, total = parts_of(mixed, indices), sum(mixed.part_weights)
    for part in mixed.drawn_parts:
        share = Fraction(mixed.part_weights[part], total)
        bound = (1 + share * len(mixed.drawn_parts)) / 2
        if shuffle:
            bound += mixed.block_length * share * (1 - share)
        counts = np.cumsum(drawn == part).tolist()
        strayed = max(abs(count - share * (n + 1)) for n, count in enumerate(counts))
        assert strayed <= bound


@pytest.mark.fuzz
@settings(max_examples=50)
@given(WEIGHTS, st.integers(1, 300), st.booleans(), st.integers(0, 3))
def test_proportions_hold_in_every_prefix_of_every_epoch(
    weights: list[float], block_length: int, shuffle: bool, epoch: int
) -> None:
    """Within the stated bound, for any real weights."""
    mixed = MixedDataset(
        [Indices(1000 + d) for d in range(len(weights))],
        weights,
        num_samples=700,
        block_length=block_length,
    )
    sampler = MixtureSampler(mixed, shuffle=shuffle, seed=1)
    sampler.set_epoch(epoch)
    assert_within_bound(mixed, list(sampler), shuffle=shuffle)


def test_the_bound_is_not_far_above_what_occurs() -> None:
    """The bound would say nothing if no mixture came near it."""
    mixed = MixedDataset([Indices(50)] * 2, [1, 1], num_samples=16, block_length=4)
    strays = []
    for seed in range(200):
        drawn = parts_of(mixed, list(MixtureSampler(mixed, seed=seed)))
        counts = np.cumsum(drawn == 0)
        strays.append(np.abs(counts - np.arange(1, 17) / 2).max())
    assert max(strays) == 1.0  # half of a block's part comes first; the bound adds 1 of rounding


@pytest.mark.parametrize("shuffle", [False, True])
def test_every_epoch_draws_as_many_of_each_part(shuffle: bool) -> None:
    mixed = MixedDataset([range(70), range(30), range(11)], [0.5, 0.3, 0.21], num_samples=100)
    sampler = MixtureSampler(mixed, shuffle=shuffle, seed=4)
    epochs = [Counter(parts_of(mixed, list(sampler)).tolist()) for _ in range(5)]
    assert all(counts == epochs[0] for counts in epochs)
    assert sum(epochs[0].values()) == len(sampler) == 100


@pytest.mark.parametrize("shuffle", [False, True])
def test_each_part_continues_where_the_previous_epoch_stopped(shuffle: bool) -> None:
    """A large part is seen whole over several epochs, and a small one as evenly as possible."""
    lengths = [70, 30, 11, 1]
    mixed = MixedDataset(
        [Indices(length) for length in lengths],
        [0.5, 0.3, 0.19, 0.01],
        num_samples=137,
        block_length=16,
    )
    sampler = MixtureSampler(mixed, shuffle=shuffle, seed=4)
    indices = [index for _ in range(8) for index in sampler]
    for part, length in enumerate(lengths):
        drawn = in_part(mixed, indices, part)
        passes = [drawn[i : i + length] for i in range(0, len(drawn) - length + 1, length)]
        assert len(passes) >= 5
        assert all(sorted(one) == list(range(length)) for one in passes)
        if not shuffle:
            assert passes[0] == list(range(length))
        elif length > 10:
            assert len({tuple(one) for one in passes}) == len(passes)


def test_parts_of_one_length_have_different_orders() -> None:
    mixed = MixedDataset([Indices(40), Indices(40)])
    indices = list(MixtureSampler(mixed, seed=3))
    assert in_part(mixed, indices, 0) != in_part(mixed, indices, 1)


def test_the_places_of_the_parts_within_a_block_are_uniform() -> None:
    """All ten arrangements of 3 and 2 come equally often, over blocks, epochs and seeds."""
    mixed = MixedDataset([range(9), range(9)], [3, 2], num_samples=500, block_length=5)
    seen: Counter[tuple[int, ...]] = Counter()
    for seed, epoch in itertools.product(range(10), range(4)):
        sampler = MixtureSampler(mixed, seed=seed)
        sampler.set_epoch(epoch)
        seen.update(map(tuple, parts_of(mixed, list(sampler)).reshape(-1, 5).tolist()))
    assert len(seen) == 10
    assert_uniform(list(seen.values()))


@pytest.mark.fuzz
def test_the_order_within_a_part_is_uniform() -> None:
    """All 24 orders of a pass over 4 samples come equally often."""
    mixed = MixedDataset([range(4), range(50)], [1, 1], num_samples=80)
    seen: Counter[tuple[int, ...]] = Counter()
    for seed in range(150):
        drawn = in_part(mixed, list(MixtureSampler(mixed, seed=seed)), 0)
        seen.update(tuple(drawn[i : i + 4]) for i in range(0, 40, 4))
    assert len(seen) == 24
    assert_uniform(list(seen.values()))


def test_a_rank_of_many_holds_few_blocks_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its samples lies in another block."""
    mixed = MixedDataset([range(70), range(30)], [0.5, 0.5], num_samples=100_000, block_length=16)
    order = MixtureSampler(mixed).order.of_epoch(7, 3)
    whole = order(np.arange(100_000))
    held: list[int] = []
    blocks = MixtureEpoch._blocks

    def noted(epoch: MixtureEpoch, numbers: list[int]) -> Any:
        held.append(len(numbers))
        return blocks(epoch, numbers)

    monkeypatch.setattr(MixtureEpoch, "_blocks", noted)
    positions = np.arange(5, 100_000, 64)
    assert np.array_equal(order(positions), whole[positions])
    assert sum(held) == len(positions)
    assert max(held) <= 128


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_place_far_away_is_found_without_passing_through(shuffle: bool) -> None:
    """Constant time: nothing of the order's length exists, whatever the position or epoch."""
    lengths = [10**12, 7, 10**6]
    mixed = MixedDataset(
        [Indices(length) for length in lengths], [0.7, 0.1, 0.2], num_samples=1 << 61
    )
    assert len(mixed) == sum(lengths)
    for epoch in (0, 2**32 - 2):
        order = MixtureSampler(mixed, shuffle=shuffle).order.of_epoch(5, epoch)
        for start in (10**9, order.n - 512):
            indices = order(np.arange(start, start + 512))
            counts = np.bincount(parts_of(mixed, indices), minlength=3)
            assert np.abs(counts - np.array([0.7, 0.1, 0.2]) * 512).max() < 2 * 256 * 0.25 + 4
            assert indices.min() >= 0


def test_a_sequential_part_has_the_computed_place_in_a_late_epoch() -> None:
    """Compared with Python's integers, beyond the range of int64."""
    mixed = MixedDataset([Indices(10**9 + 7), Indices(3)], [1, 1], num_samples=1 << 40)
    epoch = 2**32 - 3
    order = MixtureSampler(mixed, shuffle=False).order.of_epoch(0, epoch)
    position = 10**11
    drawn = epoch * (1 << 39) + position // 2
    assert order(np.array([position, position + 1])).tolist() == [
        drawn % (10**9 + 7),
        10**9 + 7 + drawn % 3,
    ]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_mixture_within_a_mixture_keeps_its_own_proportions(shuffle: bool) -> None:
    """The draws from it are a run of its own order, so its own bound holds."""
    inner = MixedDataset([Indices(40), Indices(60)], [0.25, 0.75], num_samples=50, block_length=8)
    outer = MixedDataset([Indices(30), inner], [0.4, 0.6], num_samples=200, block_length=10)
    sampler = MixtureSampler(outer, shuffle=shuffle, seed=2)
    indices = [index for _ in range(4) for index in sampler]
    assert_within_bound(outer, indices[:200], shuffle=shuffle)
    drawn = in_part(outer, indices, 1)
    assert len(drawn) == 4 * 120
    for start in range(0, 450, 50):
        assert_within_bound(inner, drawn[start : start + 50], shuffle=shuffle)
    first = in_part(inner, drawn, 0)
    assert sorted(first[:40]) == list(range(40))
    assert outer[indices[0]] in range(60)


def test_shuffled_parts_are_apart_and_unshuffled_ones_are_interleaved_evenly() -> None:
    mixed = MixedDataset([range(100), range(100)], [2, 1], num_samples=9)
    assert parts_of(mixed, list(MixtureSampler(mixed, shuffle=False))).tolist() == [
        0, 1, 0, 0, 1, 0, 0, 1, 0
    ]  # fmt: skip
    orders = [list(MixtureSampler(mixed, seed=seed)) for seed in range(2)]
    assert orders[0] != orders[1]


def test_a_dataset_of_weight_zero_is_never_drawn() -> None:
    mixed = MixedDataset([range(9), range(9), range(9)], [1, 0, 1], num_samples=500)
    assert set(parts_of(mixed, list(MixtureSampler(mixed, seed=1))).tolist()) == {0, 2}


def test_the_order_is_kept() -> None:
    """Later releases resume a state saved today."""
    inner = MixedDataset([range(4), range(3)], [1, 2])
    mixed = MixedDataset([range(5), inner, range(1)], [0.5, 0.4, 0.1], num_samples=14)
    sampler = MixtureSampler(mixed, seed=42)
    assert [list(sampler) for _ in range(2)] == GOLDEN
    assert sampler.order.algorithm == GOLDEN_NAME


def test_weights_of_the_same_proportions_are_the_same_mixture() -> None:
    one, other = (
        MixtureSampler(MixedDataset([range(20), range(7)], weights, num_samples=31))
        for weights in ([0.75, 0.25], [3, 1])
    )
    assert one.order.algorithm == other.order.algorithm


def test_only_mixtures_are_sampled() -> None:
    with pytest.raises(TypeError, match=r"range .*MixedDataset"):
        MixtureSampler(range(4))  # type: ignore[arg-type]
