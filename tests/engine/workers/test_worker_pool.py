"""A worker pool gives its idle pipeline to one pass only."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from stateful_gpu_loader.engine.stats import Tally
from stateful_gpu_loader.engine.workers.worker_pool import WorkerPool
from tests.interrupts import handle_at, places_of


class Idle:
    is_closed = is_collected = False

    def close(self) -> None:
        self.is_closed = True


def test_an_idle_pipeline_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread takes or keeps one between any two bytecodes."""
    monkeypatch.setattr(WorkerPool, "renew", lambda *_: Idle())
    pool = WorkerPool(None, Tally())
    taken: list[Any] = []

    def take() -> None:
        taken.append(pool.take(None, None, 0, None)[0])  # type: ignore[arg-type]

    def keep_and_take() -> None:
        pool.keep(Idle())  # type: ignore[arg-type]
        take()

    for first, second in ((take, take), (take, keep_and_take), (partial(pool.keep, None), take)):
        pool.keep(Idle())  # type: ignore[arg-type]
        for number in places_of(first).values():
            pool.keep(Idle())  # type: ignore[arg-type]
            taken.clear()
            with handle_at(number, lambda _, act=second: act()) as handled:  # type: ignore[misc]
                first()
            take()
            assert handled.reached
            assert len({id(each) for each in taken}) == len(taken)
            assert not any(each.is_closed for each in taken)
