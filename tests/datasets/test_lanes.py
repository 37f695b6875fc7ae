"""Division of shards into lanes, and of lanes among ranks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from stateful_gpu_loader.datasets.lanes import MOST_SAMPLES, LaneDivision, LanePlan, key_of_lane
from tests.datasets.shards import UNEVEN, Numbers


@pytest.mark.parametrize("lanes", [1, 3, 10, 16])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_shard_is_in_one_lane(lanes: int, shuffle: bool) -> None:
    """In every epoch, with the same number in each lane."""
    plan = LanePlan(Numbers(lanes=lanes), shuffle=shuffle)
    orders = []
    for epoch in range(4):
        dealt = [plan.of_epoch(7, epoch).shards_of(lane) for lane in range(lanes)]
        assert [len(shards) for shards in dealt] == [plan.num_shards(lane) for lane in range(lanes)]
        assert sorted(itertools.chain(*dealt), key=int) == plan.names
        orders.append(dealt)
    assert (orders[0] == orders[1]) is not shuffle
    if not shuffle:
        assert orders[0][0] == plan.names[::lanes]


def test_lanes_by_default() -> None:
    """64, or the number of shards if that is smaller."""
    assert LanePlan(Numbers([1] * 100), shuffle=False).num_lanes == 64
    assert LanePlan(Numbers([1] * 5), shuffle=False).num_lanes == 5


def test_the_algorithm_names_what_decides_the_order() -> None:
    """It is compared when a state is loaded."""
    plans = [
        LanePlan(Numbers(lanes=lanes, buffer=buffer), shuffle=shuffle)
        for lanes, buffer, shuffle in itertools.product((2, 4), (16, 64), (False, True))
    ]
    assert len({plan.algorithm for plan in plans}) == 6, "a buffer counts only with shuffle"
    assert plans[1].algorithm == "lanes-1, 2 lanes, windows of 8, numbers of samples unknown"
    assert [plan.window for plan in plans[:4]] == [0, 8, 0, 32]
    assert LanePlan(Numbers(lanes=4, buffer=2), shuffle=True).window == 1


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_steps_are_those_of_the_largest_rank(ranks: int, drop_last: bool) -> None:
    """Counted by hand."""
    plan = LanePlan(Numbers(lanes=4, counted=True), shuffle=True)
    for epoch in range(3):
        of_lanes = [
            sum(UNEVEN[int(shard)] for shard in plan.of_epoch(7, epoch).shards_of(lane))
            for lane in range(4)
        ]
        largest = max(sum(of_lanes[rank::ranks]) for rank in range(ranks))
        division = LaneDivision(batch_size=5, drop_last=drop_last, num_replicas=ranks)
        wanted = largest // 5 if drop_last else -(-largest // 5)
        assert plan.num_steps(7, epoch, division) == wanted
        given = {lane: of_lanes[lane] for lane in range(4)}
        assert plan.num_steps(7, epoch, division, given) == 0
        assert plan.num_steps(7, epoch, division, {0: 0}) == wanted
    assert LanePlan(Numbers(lanes=4), shuffle=True).num_steps(7, 0, division) is None


def test_numbers_of_samples_are_asked_for_once() -> None:
    """They may cost a read of each file."""

    class Asked(Numbers):
        times = 0

        def num_samples(self, shard: str) -> int | None:
            self.times += 1
            return super().num_samples(shard)

    for counted, times in ((True, len(UNEVEN)), (False, 1)):
        dataset = Asked(counted=counted)
        plan = LanePlan(dataset, shuffle=False)
        for _ in range(3):
            numbers = plan.num_samples()
        assert dataset.times == times
        assert numbers is None or numbers.tolist() == list(UNEVEN)


def test_ranks_divide_the_lanes() -> None:
    for ranks in (1, 2, 3, 4, 6, 12):
        LanePlan(Numbers(lanes=12), shuffle=False).check_ranks(ranks)
        served = [
            LaneDivision(batch_size=1, drop_last=False, rank=rank, num_replicas=ranks).lanes(12)
            for rank in range(ranks)
        ]
        assert sorted(itertools.chain(*served)) == list(range(12))
        assert {len(lanes) for lanes in served} == {12 // ranks}
    with pytest.raises(ValueError, match=r"use 1, 2, 4, 5, 8, .*, \.\.\. ranks"):
        LanePlan(Numbers(lanes=4_000_000), shuffle=False).check_ranks(3)


def test_keys_are_unique_and_fit() -> None:
    """In 63 bits, for every lane and sample."""
    assert key_of_lane(3, 5) - key_of_lane(3, 4) == 1
    assert key_of_lane(4, 0) - key_of_lane(3, MOST_SAMPLES - 1) == 1
    most = np.array([key_of_lane((1 << 22) - 1, MOST_SAMPLES - 1)], dtype=np.int64)
    assert most[0] == 2**62 - 1
