"""Snapshots that workers send, and how a pass continues from them."""

from __future__ import annotations

from typing import Any

import pytest

from stateful_gpu_loader.engine.pipeline import NOTHING, Answer
from stateful_gpu_loader.engine.schedules.worker_schedule import WorkerLedger, WorkerSchedule
from stateful_gpu_loader.state.epoch_progress import Address
from stateful_gpu_loader.state.user_states import freeze, thaw, worker_state


@pytest.mark.parametrize("interval", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_a_snapshot_holds_the_last_batch_of_each_worker_before_it(
    interval: int, num_workers: int
) -> None:
    """The sent snapshots suffice for the next complete snapshot, and none is stale."""
    ledger = WorkerLedger([None] * num_workers, interval=interval)
    for ordinal in range(40):
        worker = ordinal % num_workers
        snapshot = b"%d" % ordinal if ledger.wants_snapshot(ordinal) else None
        ledger.deliver(worker, Answer(None, worker=worker, snapshot=snapshot))
        is_whole = ledger.take_snapshot()
        assert is_whole or (ordinal + 1) % interval
        if is_whole:
            newest = [
                max((o for o in range(ordinal + 1) if o % num_workers == w), default=None)
                for w in range(num_workers)
            ]
            assert list(ledger.states) == [None if o is None else b"%d" % o for o in newest]


def turns(num_workers: int, interval: int = 1, **arguments: Any) -> WorkerSchedule:
    given: dict[str, Any] = {
        "loads": False,
        "seed": 1,
        "rank": 0,
        "num_replicas": 1,
        "in_order": True,
        "keeps_workers": False,
        "length": lambda: None,
        **arguments,
    }
    return WorkerSchedule(Address(0, 0), num_workers=num_workers, interval=interval, **given)


def play(schedule: WorkerSchedule, lengths: list[int], ahead: int, stop_after: int) -> list[int]:
    """Answer turns as workers of ``lengths`` batches would, with ``ahead`` turns in advance."""
    requests, given = schedule.requests(), [0] * len(lengths)
    for worker, start in enumerate(schedule.starts()):
        given[worker] = 0 if start.state is None else thaw(start.state)["fetches"]
    issued: list[Any] = []
    delivered: list[int] = []
    while len(delivered) < stop_after:
        while len(issued) < ahead:
            try:
                issued.append(next(requests))
            except StopIteration:
                break
        if not issued:
            break
        turn = issued.pop(0)
        worker = turn.worker
        ended = given[worker] >= lengths[worker]
        given[worker] += not ended
        state = freeze(worker_state(fetches=given[worker], ended=ended), "")
        snapshot = state if turn.snapshot or ended else None
        answer = Answer(NOTHING if ended else None, worker, snapshot)
        is_new = not ended and schedule.arrive(turn, answer) is not None
        schedule.deliver(turn, answer)
        if is_new:
            delivered.append(worker)
    return delivered


@pytest.mark.parametrize("ahead", [1, 4, 6])
@pytest.mark.parametrize("interval", [0, 1, 3, 7])
def test_turns_rotate_before_ends_are_known_and_after_a_loss(ahead: int, interval: int) -> None:
    """The order depends on no timing, and recovery continues it at every place."""
    lengths = [5, 0, 9]
    whole = play(turns(3, interval), lengths, ahead=3, stop_after=99)
    assert whole == [0, 2] * 5 + [2] * 4
    for place in range(len(whole) + 1):
        schedule = turns(3, interval)
        before = play(schedule, lengths, ahead, stop_after=place)
        after = play(schedule, lengths, ahead, stop_after=99)
        assert before + after == whole, place
