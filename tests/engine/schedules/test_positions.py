"""Division of an epoch into steps and ranks."""

from __future__ import annotations

import itertools
import math
from itertools import islice

import numpy as np
import pytest
from torch.utils.data import DistributedSampler

from stateful_gpu_loader.engine.schedules.positions import Division, PositionFeed
from stateful_gpu_loader.records import Request
from stateful_gpu_loader.samplers import SequentialOrder, ShuffledOrder
from stateful_gpu_loader.state.epoch_progress import Address
from tests.damaged import drawing


def requests(
    n: int,
    batch_size: int,
    *,
    ranks: int = 1,
    rank: int = 0,
    drop_last: bool = False,
    start: int = 0,
) -> list[Request]:
    division = Division(batch_size=batch_size, drop_last=drop_last, rank=rank, num_replicas=ranks)
    indices = ShuffledOrder(range(n)).of_epoch(1, 5)
    feed = PositionFeed(Address(5, start), seed=1, indices=indices, division=division)
    return list(drawing(feed))


@pytest.mark.parametrize("drop_last", [False, True])
def test_one_rank_takes_every_position_once(drop_last: bool) -> None:
    for n in (1, 2, 7, 8, 23, 24, 25):
        taken = np.concatenate([[], *(r.positions for r in requests(n, 4, drop_last=drop_last))])
        assert taken.tolist() == list(range(n // 4 * 4 if drop_last else n))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_pad_as_distributed_sampler_does(ranks: int) -> None:
    for n, rank in itertools.product([1, 2, 7, 8, 23, 24, 25, 100], range(ranks)):
        indices = SequentialOrder(range(n)).of_epoch(1, 0)
        division = Division(batch_size=4, drop_last=False, rank=rank, num_replicas=ranks)
        feed = PositionFeed(Address(0, 0), seed=1, indices=indices, division=division)
        peer = DistributedSampler(range(n), ranks, rank, shuffle=False)  # type: ignore[arg-type]
        assert np.concatenate([r.indices for r in drawing(feed)]).tolist() == list(peer)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("start", [0, 5, 12])
def test_the_global_batch_depends_on_the_global_batch_size_alone(ranks: int, start: int) -> None:
    """Compared without the padding of the last step."""
    n = 100
    alone = requests(n, 12, start=start)
    together = [
        requests(n, 12 // ranks, ranks=ranks, rank=rank, start=start) for rank in range(ranks)
    ]
    for whole, *parts in zip(alone, *together, strict=True):
        merged = {
            position: index
            for part in parts
            for position, index in zip(part.positions.tolist(), part.indices.tolist(), strict=True)
            if position < n
        }
        assert sorted(merged) == whole.positions.tolist()
        assert [merged[position] for position in sorted(merged)] == whole.indices.tolist()
        assert {part.end for part in parts} == {whole.end}


def test_another_batch_size_gives_the_same_order() -> None:
    orders = [
        np.concatenate([r.indices for r in requests(50, size)]).tolist()
        for size in (1, 4, 7, 50, 99)
    ]
    assert all(order == orders[0] for order in orders)


@pytest.mark.parametrize("drop_last", [False, True])
def test_any_start_gives_the_rest_and_ends_at_the_epochs_end(drop_last: bool) -> None:
    whole = {
        position: index
        for r in requests(50, 1)
        for position, index in zip(r.positions.tolist(), r.indices.tolist(), strict=True)
    }
    for start in range(51):
        rest = requests(50, 4, start=start, drop_last=drop_last)
        left = 50 - start
        assert len(rest) == (left // 4 if drop_last else math.ceil(left / 4))
        for r in rest:
            assert r.indices.tolist() == [whole[position] for position in r.positions.tolist()]
        if rest:
            assert rest[-1].end == 50


def test_a_padded_position_has_a_key_of_its_own() -> None:
    """Position n + k holds the index of position k under the key position n + k."""
    last = requests(7, 2, ranks=4, rank=3)[-1]
    assert last.positions.tolist() == [3, 7]
    first = requests(7, 7)[0]
    assert last.indices.tolist() == [first.indices[3], first.indices[0]]


def test_the_first_request_of_a_huge_epoch_is_immediate_and_exact() -> None:
    """In the middle of 2**62 samples."""
    n, start = 2**62, 2**61 + 12345

    class Huge:
        def __len__(self) -> int:
            return n

    indices = ShuffledOrder(Huge()).of_epoch(3, 0)
    division = Division(batch_size=8, drop_last=False)
    feed = PositionFeed(Address(0, start), seed=3, indices=indices, division=division)
    first, second = islice(drawing(feed), 2)
    assert first.positions.tolist() == list(range(start, start + 8))
    assert second.start == start + 8
    assert len({*first.indices.tolist(), *second.indices.tolist()}) == 16


def test_a_request_is_drawn_again_until_the_feed_advances() -> None:
    feed = PositionFeed(
        Address(0, 0),
        seed=3,
        indices=ShuffledOrder(range(9)).of_epoch(3, 0),
        division=Division(batch_size=4, drop_last=False),
    )
    first, again = feed.draw(), feed.draw()
    assert first is not None
    assert again is not None
    assert first.indices.tolist() == again.indices.tolist()
    feed.advance(again)
    following = feed.draw()
    assert following is not None
    assert following.start == 4
