"""The interrupter of the tests raises at the places that it counts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType

import pytest

from stateful_gpu_loader import StatefulGPULoader
from tests.interrupts import count_places, interrupt_at


def _batches() -> Iterator[list[int]]:
    batches = iter(StatefulGPULoader(range(12), batch_size=4, collate_fn=list))
    next(batches)
    return batches


@pytest.mark.parametrize("by", ["line", "opcode"])
def test_every_counted_place_is_reached_and_named(by: str) -> None:
    batches = _batches()
    places = count_places(lambda: next(batches), by=by)
    assert places > 50
    met = set()
    for n in range(1, places + 1):
        batches = _batches()
        with pytest.raises(KeyboardInterrupt) as caught, interrupt_at(n, by=by) as interrupt:
            next(batches)
        where = interrupt.where
        assert where is not None
        assert where.opcode
        assert where.source
        raised_in = _innermost(caught.tb)
        assert (where.function, where.line) == (
            raised_in.tb_frame.f_code.co_name,
            raised_in.tb_lineno,
        )
        met.add(where)
    assert any(where.outermost for where in met)
    assert not all(where.outermost for where in met)


def test_bytecodes_are_finer_than_lines() -> None:
    one, other = _batches(), _batches()
    assert count_places(lambda: next(one)) > count_places(lambda: next(other), by="line")


def test_a_place_that_is_not_reached_raises_nothing() -> None:
    batches = _batches()
    with interrupt_at(10**9) as interrupt:
        next(batches)
    assert not interrupt.reached
    assert interrupt.where is None
    assert interrupt.count > 0


def test_the_error_is_raised_once_and_tracing_is_as_it_was() -> None:
    def own(*of: object) -> None:
        return None

    before = sys.gettrace()
    batches = _batches()
    sys.settrace(own)
    try:
        with interrupt_at(5, ValueError) as interrupt:
            with pytest.raises(ValueError, match="raised before engine"):
                next(batches)
            next(batches)
        with suppress(KeyboardInterrupt):
            count_places(_interrupted)
        assert sys.gettrace() is own
    finally:
        sys.settrace(before)
    assert interrupt.reached


def test_code_outside_the_package_is_left_alone() -> None:
    assert count_places(lambda: sorted(range(9), key=lambda i: -i)) == 0


def _interrupted() -> None:
    raise KeyboardInterrupt


def _innermost(traceback: TracebackType) -> TracebackType:
    while traceback.tb_next is not None and "interrupts" not in str(
        traceback.tb_next.tb_frame.f_code.co_filename
    ):
        traceback = traceback.tb_next
    return traceback
