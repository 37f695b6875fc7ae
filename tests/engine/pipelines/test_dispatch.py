"""The order of one pass, without any worker."""

from __future__ import annotations

from typing import Any

import pytest

from stateful_gpu_loader.engine.pipelines.dispatch import Dispatch
from stateful_gpu_loader.records import WorkerStart
from tests.engine.pipelines.fakes import nothing, request, starts


def dispatch(
    wanted: list[int | None], *, starts: list[WorkerStart] | None = None, in_order: bool = True
) -> Dispatch:
    asked = iter([request(i, nothing, worker=worker) for i, worker in enumerate(wanted)])
    return Dispatch(asked, starts, num_workers=2, limit=4, in_order=in_order)


def workers_of(order: Dispatch, numbers: list[int]) -> list[Any]:
    return [(order.issue(number) or (None,))[0] for number in numbers]


def test_no_more_are_issued_than_the_limit_allows() -> None:
    order = dispatch([None] * 9)
    issued = [order.issue(number) for number in range(6)]
    assert [one[1].ordinal for one in issued if one is not None] == [0, 1, 2, 3]
    assert order.issue(6, spare=1) is not None
    assert order.num_under_way == 5
    assert order.oldest.ordinal == 0


def test_in_order_the_oldest_is_delivered_first_and_counts_until_then() -> None:
    order = dispatch([None] * 9)
    for number in range(4):
        order.issue(number)
    order.answer(2, "c")
    order.answer(1, "b")
    assert not order.is_ready()
    assert order.issue(4) is None
    order.answer(0, "a")
    assert order.oldest.ordinal == 3
    assert [order.deliver()[1] for _ in range(3)] == ["a", "b", "c"]
    assert not order.is_ready()


def test_out_of_order_the_first_answer_is_delivered_first() -> None:
    """A11."""
    order = dispatch([None] * 9, in_order=False)
    for number in range(4):
        order.issue(number)
    for number in (2, 0):
        order.answer(number, number)
    assert [order.deliver()[1] for _ in range(2)] == [2, 0]
    assert order.oldest.ordinal == 1


def test_out_of_order_the_next_worker_with_room_is_chosen() -> None:
    """A11: as torch's DataLoader does."""
    order = dispatch([None] * 9, in_order=False)
    assert workers_of(order, [0, 1, 2, 3]) == [0, 1, 0, 1]
    for number in (1, 3):
        order.answer(number, "quick")
        order.deliver()
    assert workers_of(order, [4, 5]) == [1, 1]


def test_out_of_order_nothing_is_lost_when_one_worker_is_named_too_often() -> None:
    """A11: fixed routes and free ones in one pass."""
    order = dispatch([0, 0, 0, None], in_order=False)
    assert workers_of(order, [0, 1, 2, 3]) == [0, 0, 0, 1]


def test_each_worker_is_told_once_what_it_begins_with() -> None:
    one, other = starts(2)
    order = dispatch([None, 1, 0, 0], starts=[one, other])
    told = [(order.issue(number) or (None,) * 3)[2] for number in range(4)]
    assert told == [one, other, None, None]


def test_answers_that_nobody_waits_for_are_dropped() -> None:
    order = dispatch([None])
    order.issue(7)
    order.answer(3, "from an earlier pass")
    assert not order.is_ready()


def test_the_end_says_why() -> None:
    order = dispatch([])
    order.end()  # not known yet
    assert order.issue(0) is None
    with pytest.raises(StopIteration):
        order.end()
