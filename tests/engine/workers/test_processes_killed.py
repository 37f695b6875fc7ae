"""Worker processes are killed, end, stop or hang; others do their work, and nothing hangs."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from stateful_gpu_loader.engine.pipeline import WorkersDied
from stateful_gpu_loader.engine.workers import segments
from tests.conformance import same
from tests.engine.workers import fakes
from tests.engine.workers.fakes import Doing, Gate, answers, request, requests, until_death
from tests.patience import seconds

KILLED = r"DataLoader worker \(pid \d+\) is killed by signal: Killed"


@pytest.fixture
def without_segments(monkeypatch: Any) -> None:
    """A large batch then goes through the socket, in parts."""
    monkeypatch.setattr(segments, "_has_segments", lambda: False)


def ordinal_of(died: WorkersDied) -> int | None:
    """Return the ordinal of the worker's request, or of the oldest unanswered request."""
    return None if died.oldest is None else died.oldest.ordinal


@pytest.mark.processes
@pytest.mark.usefixtures("without_segments")
@pytest.mark.parametrize("batch", [fakes.large, fakes.shared])
@pytest.mark.parametrize("victims", [(0,), (1,), (0, 1)])
def test_killed_before_the_batch_is_received(
    make: Any, batch: Callable[[], Any], victims: tuple[int, ...]
) -> None:
    """The batch's head has arrived; the rest, or its memory, is lost with the worker."""
    pipeline = make()
    pipeline.start(requests(*[batch] * 6))
    fakes.await_an_answer(pipeline, victims[0])
    fakes.kill(pipeline, *victims)
    with pytest.warns(RuntimeWarning, match="is killed by signal"):
        assert same(answers(pipeline), [batch()] * 6)


def test_all_killed_at_once(make: Any, gate: Gate) -> None:
    pipeline = make(num_workers=4, max_losses=8)
    pipeline.start(requests(gate.action, *[fakes.large] * 7))
    gate.reached()
    fakes.kill(pipeline, *range(4))
    gate.open()
    with pytest.warns(RuntimeWarning, match=KILLED):
        assert answers(pipeline) == ["gate", *[fakes.large()] * 7]


def test_killed_when_all_was_delivered(make: Any) -> None:
    """The next start notices it."""
    pipeline = make(persistent_workers=True)
    pipeline.start(requests(*[fakes.nothing] * 3))
    for _ in range(3):
        next(pipeline)
    fakes.kill(pipeline, 1)
    with pytest.raises(StopIteration):
        next(pipeline)


class DyingWhenRead(Doing):
    """Ends the process that unpickles it, long before its last byte."""

    def __init__(self) -> None:
        super().__init__()
        self.first = _DyingWhenRead()
        self.rest = bytes(1 << 20)


class _DyingWhenRead:
    def __reduce__(self) -> Any:
        return fakes.leave, (3,)


@pytest.mark.processes
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_killed_before_it_has_read_a_large_dataset(make: Any, method: str) -> None:
    """multiprocessing itself would wait forever to write the rest."""
    pipeline = make(DyingWhenRead(), multiprocessing_context=method, num_workers=1)
    pipeline.start(requests(fakes.nothing))
    with pytest.raises(WorkersDied, match="exited unexpectedly"):
        next(pipeline)


def test_requests_of_the_dead_do_not_hold_back_the_rest(make: Any, gate: Gate) -> None:
    """More requests than a socket holds are still to be sent to the dead worker."""
    pipeline = make(prefetch_factor=4)
    load = bytes(1 << 20)
    others = [request(i, fakes.nothing, seed=load) for i in range(1, 8)]
    pipeline.start(iter([request(0, gate.action), *others]))
    gate.reached()
    fakes.kill(pipeline, 0, 1)
    gate.open()
    with pytest.warns(RuntimeWarning, match=KILLED):
        assert answers(pipeline) == ["gate", *[0] * 7]


def leave_by_exception() -> None:
    raise SystemExit(5)


@pytest.mark.parametrize(
    ("action", "what"),
    [
        (partial(fakes.leave, 3), "exited unexpectedly with exit code 3"),
        (leave_by_exception, "exited unexpectedly with exit code 5"),
        (partial(signal.raise_signal, signal.SIGBUS), "Bus error. It is possible that dataloader"),
    ],
)
def test_a_worker_that_ends_by_itself(make: Any, action: Any, what: str) -> None:
    """The report has torch's words."""
    pipeline = make(num_workers=1, max_losses=0)
    pipeline.start(requests(action))
    pid = pipeline.workers[0].pid
    with pytest.raises(WorkersDied) as died:
        next(pipeline)
    assert str(pid) in died.value.message
    assert what in died.value.message


def test_a_hanging_worker_is_found_by_timeout(make: Any, gate: Gate) -> None:
    pipeline = make(timeout=0.2, max_losses=0)
    pipeline.start(requests(gate.action, fakes.nothing))
    gate.reached()
    with pytest.raises(WorkersDied, match=r"DataLoader timed out after 0\.2 seconds$") as died:
        next(pipeline)
    assert ordinal_of(died.value) == 0


@pytest.mark.usefixtures("without_segments")
def test_a_stopped_worker_is_found_by_timeout(make: Any) -> None:
    """A batch has begun to arrive, and only the stopped worker can send the rest."""
    pipeline = make(timeout=2, num_workers=1)
    pipeline.start(requests(fakes.large, fakes.large))
    fakes.await_an_answer(pipeline, 0)
    fakes.kill(pipeline, 0, sig=signal.SIGSTOP)
    with pytest.warns(RuntimeWarning, match="DataLoader timed out after 2 seconds"):
        assert answers(pipeline) == [fakes.large()] * 2


def test_a_worker_that_closes_its_connection_is_lost(make: Any, gate: Gate) -> None:
    pipeline = make(num_workers=1, max_losses=0, timeout=seconds(20))
    pipeline.start(requests(partial(fakes.closing_its_connection, gate.action)))
    _, error = fakes.until_death(pipeline)
    assert "is killed by signal: Killed" in error.message


@pytest.mark.usefixtures("without_segments")
def test_a_child_that_outlives_the_worker_delays_no_batch(make: Any, gate: Gate) -> None:
    """It keeps the worker's sentinel open, and the socket after half a message."""
    pipeline = make(num_workers=1, max_losses=0)
    pipeline.start(requests(partial(fakes.leaving_a_child, gate.action)))
    gate.reached()
    fakes.await_an_answer(pipeline, 0)
    fakes.kill(pipeline, 0)
    with pytest.raises(WorkersDied, match=KILLED):
        next(pipeline)
    pipeline.close()


def test_out_of_order_the_one_that_was_made_is_named(make: Any, gate: Gate) -> None:
    pipeline = make(in_order=False, max_losses=0)
    pipeline.start(requests(gate.action, fakes.nothing, fakes.nothing, fakes.nothing))
    gate.reached()
    assert next(pipeline)[0].ordinal == 1
    fakes.kill(pipeline, 0)
    _, died = until_death(pipeline)
    assert ordinal_of(died) == 0


def test_an_interrupt_within_a_batch_makes_no_wrong_batch(make: Any, monkeypatch: Any) -> None:
    """A pipeline that has lost an answer can only be closed."""
    pipeline = make(num_workers=1)
    pipeline.start(requests(*[fakes.nothing] * 4))
    receive = pipeline._dispatch._cluster.receive

    def interrupted() -> Any:
        receive()
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline._dispatch._cluster, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(pipeline)
    assert not pipeline.is_whole


def test_an_interrupt_while_it_waits_loses_nothing(make: Any, gate: Gate, monkeypatch: Any) -> None:
    pipeline = make(num_workers=1)
    pipeline.start(requests(gate.action, *[fakes.returning(i) for i in range(3)]))
    gate.reached()
    wait = pipeline._dispatch._cluster.wait
    interrupts: Iterator[BaseException] = iter([KeyboardInterrupt()])

    def waiting(seconds: float) -> None:
        for interrupt in interrupts:
            raise interrupt
        wait(seconds)

    monkeypatch.setattr(pipeline._dispatch._cluster, "wait", waiting)
    with pytest.raises(KeyboardInterrupt):
        next(pipeline)
    assert pipeline.is_whole
    gate.open()
    assert answers(pipeline) == ["gate", 0, 1, 2]


def test_a_maker_that_cannot_be_pickled_is_not_a_lost_worker(make: Any) -> None:
    class Offline(Doing):
        def __reduce__(self) -> Any:
            raise ConnectionError("no route to the dataset")

    pipeline = make(Offline(), multiprocessing_context="spawn")
    with pytest.raises(ConnectionError, match="no route"):
        pipeline.start(requests(fakes.nothing))
