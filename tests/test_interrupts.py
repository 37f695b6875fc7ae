"""The tests' interrupter raises at the places that it counts."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal

import pytest

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.datasets.storage.kept_files import Descriptor
from tests.interrupts import interrupt_at, places_of


def _batches() -> Iterator[list[int]]:
    batches = iter(StatefulGPULoader(range(12), batch_size=4, collate_fn=list))
    next(batches)
    return batches


@pytest.mark.parametrize(("by", "every"), [("line", 3), ("opcode", 20)])
def test_a_place_is_reached_and_named(by: Literal["line", "opcode"], every: int) -> None:
    places = places_of(partial(next, _batches()), by=by)
    assert len(places) > 50
    for number in [*places.values()][::every]:
        batches = _batches()
        with pytest.raises(KeyboardInterrupt) as caught, interrupt_at(number, by=by) as interrupt:
            next(batches)
        place = interrupt.where
        assert place is not None
        raised_in = _innermost(caught.tb)
        assert (place.function, place.line) == (
            raised_in.tb_frame.f_code.co_name,
            raised_in.tb_lineno,
        )
        assert place.opcode
        assert place.source
        assert not place.source.startswith("with ")
    assert {bool(place.callers) for place in places} == {True, False}


def test_garbage_of_others_changes_no_number() -> None:
    def number_of_places(*thresholds: int) -> int:
        batches = _batches()
        for _ in range(5):
            cycle: list[object] = [_batches()]
            cycle.append(cycle)
        with interrupt_at(10**9, by="line") as interrupt:
            gc.set_threshold(*thresholds)
            next(batches)
        return interrupt.count

    before = gc.get_threshold()
    gc.collect()
    try:
        assert number_of_places(1, 1, 1) == number_of_places(10**6)
    finally:
        gc.set_threshold(*before)


def test_bytecodes_are_finer_than_lines() -> None:
    by_bytecode, by_line = (
        places_of(partial(next, _batches()), by="opcode"),
        places_of(partial(next, _batches()), by="line"),
    )
    assert len(by_bytecode) > len(by_line)


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
            places_of(_interrupted)
        assert sys.gettrace() is own
    finally:
        sys.settrace(before)
    assert interrupt.reached


def test_code_outside_the_package_is_left_alone() -> None:
    assert places_of(lambda: sorted(range(9), key=lambda i: -i)) == {}


def test_what_the_interpreter_would_drop_is_not_raised(tmp_path: Path) -> None:
    opened = [Descriptor(str(tmp_path / "file"), os.O_CREAT)]
    assert places_of(opened.clear) == {}
    assert not opened


def _interrupted() -> None:
    raise KeyboardInterrupt


def _innermost(traceback: TracebackType) -> TracebackType:
    while traceback.tb_next is not None and "interrupts" not in str(
        traceback.tb_next.tb_frame.f_code.co_filename
    ):
        traceback = traceback.tb_next
    return traceback
