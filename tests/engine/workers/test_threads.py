"""Worker threads: order, bounds, failures, stops."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stateful_gpu_loader.engine.pipeline import Failure, WorkersDied
from stateful_gpu_loader.engine.workers.pool import PoolPipeline
from stateful_gpu_loader.records import Request, WorkerStart
from tests.engine.workers import fakes
from tests.patience import seconds


def stream(count: int) -> Iterator[Request]:
    return iter([fakes.request(ordinal, ordinal) for ordinal in range(count)])


class Gated:
    """Answers a request only once its gate is open, and notes which requests were begun."""

    uses_global_generators = False

    def __init__(self, count: int, *, opened: bool = False) -> None:
        self.gates = [threading.Event() for _ in range(count)]
        self.started = [threading.Event() for _ in range(count)]
        if opened:
            for gate in self.gates:
                gate.set()

    def __call__(self, request: Request, check: Callable[[], None]) -> Any:
        self.started[request.ordinal].set()
        while not self.gates[request.ordinal].wait(0.01):
            check()
        if request.ordinal % 5 == 3:
            raise KeyError(request.ordinal)
        return request.ordinal


def pipeline(maker: Gated, workers: int = 2, factor: int = 2, **options: Any) -> PoolPipeline:
    return fakes.threads(maker, num_workers=workers, prefetch_factor=factor, **options)


def live_threads() -> int:
    return sum(thread.name.startswith("stateful_gpu_loader") for thread in threading.enumerate())


def test_answers_come_in_order_whatever_finishes_first() -> None:
    maker = Gated(4)
    work = pipeline(maker, workers=4, factor=1)
    work.start(stream(4))
    for started in maker.started:
        assert started.wait(10)
    for gate in reversed(maker.gates):
        gate.set()
    assert [next(work)[0].ordinal for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(StopIteration):
        next(work)


def test_no_more_batches_are_begun_than_prefetch_allows() -> None:
    maker = Gated(20, opened=True)
    work = pipeline(maker, workers=2, factor=2)
    work.start(stream(20))
    assert maker.started[3].wait(10)
    assert not maker.started[4].wait(0.05)
    next(work)
    assert maker.started[4].wait(10)
    work.close()


def test_any_exception_of_a_worker_reaches_the_consumer_and_the_others_continue() -> None:
    class Panic(BaseException):
        pass

    class Panicking(Gated):
        def __call__(self, request: Request, check: Callable[[], None]) -> Any:
            if request.ordinal == 1:
                raise Panic
            return super().__call__(request, check)

    work = pipeline(Panicking(6, opened=True))
    work.start(stream(6))
    answers = [next(work)[1] for _ in range(6)]
    for failed, error in ((answers.pop(3), KeyError), (answers.pop(1), Panic)):
        assert isinstance(failed, Failure)
        with pytest.raises(error):
            failed.reraise()
    assert answers == [0, 2, 4, 5]


@pytest.mark.parametrize("how", ["close", "drop", "restart"])
def test_nothing_is_left_after_a_stop_in_the_middle(how: str) -> None:
    """Neither threads that wait nor threads at work."""
    before = live_threads()
    maker = Gated(10)
    work = pipeline(maker)
    work.start(stream(10))
    assert maker.started[1].wait(10)
    if how == "close":
        work.close()
    elif how == "drop":
        del work
        gc.collect()
    else:
        for gate in maker.gates:
            gate.set()
        work.start(stream(3))
        assert [next(work)[1] for _ in range(3)] == [0, 1, 2]
        work.close()
    assert live_threads() <= before


def test_a_stuck_batch_is_found_by_timeout_and_its_thread_is_abandoned(monkeypatch: Any) -> None:
    """Nothing can end a thread, so nothing waits for it."""
    monkeypatch.setattr("stateful_gpu_loader.engine.workers.threads._JOIN_SECONDS", 10**6)

    class Stuck(Gated):
        def __call__(self, request: Request, check: Callable[[], None]) -> Any:
            if request.ordinal == 1:
                self.gates[1].wait()
            return super().__call__(request, check)

    maker = Stuck(4)
    limit = seconds(0.05)
    work = pipeline(maker, timeout=limit, max_losses=0)
    work.start(stream(4))
    maker.gates[0].set()
    assert next(work)[1] == 0
    timed_out = re.escape(f"DataLoader timed out after {limit} seconds")
    with pytest.raises(WorkersDied, match=f"{timed_out}$") as died:
        next(work)
    assert died.value.oldest is not None
    assert died.value.oldest.ordinal == 1
    with pytest.raises(WorkersDied):
        next(work)
    work.close()
    for gate in maker.gates:
        gate.set()


def test_a_batch_that_was_stuck_once_is_made_by_other_threads() -> None:
    class StuckOnce(Gated):
        def __call__(self, request: Request, check: Callable[[], None]) -> Any:
            if request.ordinal == 1 and not self.started[1].is_set():
                self.started[1].set()
                stuck.wait()
            return super().__call__(request, check)

    stuck = threading.Event()
    work = pipeline(StuckOnce(3, opened=True), timeout=seconds(0.05))
    work.start(stream(3))
    with pytest.warns(RuntimeWarning, match=r"timed out.* 1\."):
        assert [next(work)[1] for _ in range(3)] == [0, 1, 2]
    assert work._tally.worker_restarts == 1
    stuck.set()
    work.close()


def test_out_of_order_a_slow_batch_delays_no_other() -> None:
    maker = Gated(8)
    work = pipeline(maker, in_order=False)
    work.start(stream(8))
    for gate in maker.gates[1:]:
        gate.set()
    early = [next(work)[0].ordinal for _ in range(7)]
    assert early == list(range(1, 8))
    maker.gates[0].set()
    assert next(work) == (next(stream(1)), 0)
    with pytest.raises(StopIteration):
        next(work)


def test_workers_that_share_a_maker_cannot_begin_with_a_state() -> None:
    work = pipeline(Gated(1))
    start = WorkerStart(seed=0, epoch=0, place=0, stride=1, state=None)
    with pytest.raises(ValueError, match="cannot have a state"):
        work.start(stream(1), [start])
