"""A lane's cursor as text, and moments of lanes: each keeps its value, however many follow."""

from __future__ import annotations

import copy
import pickle
import random
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateful_gpu_loader.state.lane_cursor import LaneCursor, LaneCursors, lane_text
from stateful_gpu_loader.state.schema import lane_key
from tests.interrupts import handle_at, places_of


def test_every_moment_equals_a_copy_of_all_cursors() -> None:
    """Read in any order, also while others follow."""
    drawing = random.Random(5)
    copied = {lane: LaneCursor() for lane in range(3, 40, 4)}
    moments, copies = [LaneCursors(7, copied)], [dict(copied)]
    for turn in range(60):
        moving = drawing.sample(sorted(copied), drawing.randrange(4))
        moved = {lane: LaneCursor(turns=turn, count=turn * 8) for lane in moving}
        copied |= moved
        moments.append(moments[-1].moved(moved))
        copies.append(dict(copied))
        asked = drawing.randrange(len(moments))
        assert moments[asked].texts() == texts_of(copies[asked])
    for moment, expected in zip(moments, copies, strict=True):
        assert moment == expected
        assert list(moment.texts().items()) == list(texts_of(expected).items())


def texts_of(cursors: dict[int, LaneCursor]) -> dict[str, str]:
    return {lane_key(lane): lane_text(7, cursor) for lane, cursor in cursors.items()}


def test_the_texts_of_a_moment_are_the_callers_own_copy() -> None:
    moment = LaneCursors(7, {0: LaneCursor()})
    moment.texts().clear()
    assert moment.texts() == texts_of({0: LaneCursor()})


def test_only_the_latest_moment_is_followed() -> None:
    first = LaneCursors(7, {0: LaneCursor()})
    first.moved({0: LaneCursor(turns=1)})
    with pytest.raises(ValueError, match="another moment follows"):
        first.moved({0: LaneCursor(turns=2)})


def test_a_copy_is_a_moment_of_its_own() -> None:
    first = LaneCursors(7, {0: LaneCursor(), 1: LaneCursor()})
    second = first.moved({1: LaneCursor(turns=1)})
    for twin in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert twin == first
        twin.moved({1: LaneCursor(turns=5)})
    assert (first[1].turns, second[1].turns) == (0, 1)


def test_a_signal_handler_reads_a_moment_while_it_is_followed() -> None:
    """The handler runs in the thread that holds the lock, so it must not wait for it."""

    def initial() -> LaneCursors:
        return LaneCursors(0, {0: LaneCursor(), 1: LaneCursor()})

    def follow(first: LaneCursors) -> None:
        first.moved({1: LaneCursor(turns=1, count=8)}).texts()

    expected = initial().texts()
    places = places_of(partial(follow, initial()))
    assert len(places) > 20
    for number in places.values():
        first, found = initial(), list[dict[str, str]]()
        with handle_at(number, lambda _, first=first, found=found: found.append(first.texts())):
            follow(first)
        assert found == [expected]


_numbers = st.integers(0, 2**63 - 1)


@given(_numbers, _numbers, _numbers, _numbers, _numbers)
def test_a_written_cursor_is_read_back(a: int, b: int, c: int, d: int, e: int) -> None:
    cursor = LaneCursor(turns=a, count=max(b, e), shard=c, offset=d, taken=min(b, e))
    assert LaneCursor.from_text(cursor.to_text()) == cursor
    assert cursor.window_start == max(b, e) - min(b, e)


def test_anything_else_is_refused() -> None:
    for text in (
        "",
        "1:2:3:4",
        "1:2:3:4:1:6",
        "1:2:3:4:3",
        "-1:2:3:4:1",
        " 1:2:3:4:1",
        "1:2:3:4:1\n",
        "01:2:3:4:1",
        "9223372036854775808:2:3:4:1",
        "\u0967:2:3:4:1",
    ):
        with pytest.raises(ValueError, match="cursor"):
            LaneCursor.from_text(text)
