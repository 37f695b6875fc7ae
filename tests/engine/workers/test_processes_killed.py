"""Workers that are killed, end, stop or hang: a named error, at next() or start(), and no hang."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from stateful_gpu_loader.engine.pipeline import WorkersDied
from tests.engine.workers import fakes
from tests.engine.workers.fakes import Doing, Gate, answers, request, requests, until_death

KILLED = r"DataLoader worker \(pid \d+\) is killed by signal: Killed"


def ordinal_of(died: WorkersDied) -> int | None:
    """Of the oldest request without an answer."""
    return None if died.oldest is None else died.oldest.ordinal


@pytest.mark.processes
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_any_worker_killed_while_next_waits(make: Any, gate: Gate, victim: int) -> None:
    """Whoever dies, the answers that came before are delivered, and the oldest is named."""
    pipeline = make(num_workers=3)
    pipeline.start(requests(fakes.nothing, gate.action, *[fakes.nothing] * 9))
    assert next(pipeline)[1] == 0
    pid = pipeline.workers[victim].pid

    def kill() -> None:
        gate.reached()
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(WorkersDied, match=KILLED.replace(r"\d+", str(pid))) as died:
        next(pipeline)
    killer.join()
    assert ordinal_of(died.value) == 1
    with pytest.raises(WorkersDied, match=KILLED):
        next(pipeline)


def test_the_users_own_step_is_not_interrupted(make: Any) -> None:
    """torch's SIGCHLD handler would raise there."""
    pipeline = make()
    pipeline.start(iter([request(i, fakes.nothing) for i in range(1000)]))
    next(pipeline)
    victim = pipeline.workers[0]
    fakes.kill(pipeline, 0)
    os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOWAIT)
    assert sum(i for i in range(10_000)) == 49_995_000  # where a handler would run
    _, died = until_death(pipeline)
    assert f"(pid {victim.pid}) is killed by signal: Killed" in died.what


@pytest.mark.processes
@pytest.mark.parametrize("batch", [fakes.large, fakes.shared])
@pytest.mark.parametrize("victims", [(0,), (1,), (0, 1)])
def test_killed_before_the_batch_is_received(
    make: Any, batch: Callable[[], Any], victims: tuple[int, ...]
) -> None:
    """Its head is in the pipe; the rest, or the memory it lies in, goes with the worker."""
    pipeline = make()
    pipeline.start(requests(*[batch] * 6))
    pipeline._torch_workers.wait()
    fakes.kill(pipeline, *victims)
    found, died = until_death(pipeline)
    assert len(found) < 6
    assert ordinal_of(died) == len(found)
    assert "is killed by signal" in died.what


@pytest.mark.processes
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_killed_with_other_start_methods(make: Any, gate: Gate, method: str) -> None:
    pipeline = make(multiprocessing_context=method, num_workers=1)
    pipeline.start(requests(gate.action))
    gate.reached()
    fakes.kill(pipeline, 0)
    with pytest.raises(WorkersDied, match=KILLED):
        next(pipeline)


@pytest.mark.parametrize("count", [2, 4])
def test_several_killed_at_once(make: Any, gate: Gate, count: int) -> None:
    pipeline = make(num_workers=4)
    pipeline.start(requests(gate.action, *[fakes.large] * 7))
    gate.reached()
    fakes.kill(pipeline, *range(count))
    with pytest.raises(WorkersDied, match=KILLED) as died:
        next(pipeline)
    assert ordinal_of(died.value) == 0


def test_killed_at_the_last_batch(make: Any) -> None:
    pipeline = make()
    pipeline.start(requests(fakes.nothing, fakes.nothing, fakes.die), one_at_a_time=True)
    found, died = until_death(pipeline)
    assert found == [0, 0]
    assert ordinal_of(died) == 2


@pytest.mark.parametrize("persistent", [True, False])
def test_killed_when_all_was_delivered(make: Any, persistent: bool) -> None:
    """It is noticed at the next start, or not at all."""
    pipeline = make(persistent_workers=persistent)
    pipeline.start(requests(*[fakes.nothing] * 3))
    for _ in range(3):
        next(pipeline)
    fakes.kill(pipeline, 1)
    with pytest.raises(StopIteration):
        next(pipeline)


def test_persistent_workers_killed_while_idle(make: Any) -> None:
    """start() says so, and after close() they are started anew."""
    pipeline = make(persistent_workers=True)
    pipeline.start(requests(fakes.nothing))
    assert answers(pipeline) == [0]
    fakes.kill(pipeline, 1)
    assert pipeline._torch_workers.monitor.has_lost(60)
    with pytest.raises(WorkersDied, match=KILLED):
        pipeline.start(requests(fakes.nothing))
    pipeline.close()
    pipeline.start(requests(fakes.nothing))
    assert answers(pipeline) == [0]


def start_and_finish(pipeline: Any, asked: Any) -> list[Any]:
    """Whether start() notices or next() is a matter of time."""
    pipeline.start(asked)
    return answers(pipeline)


def dying_initially(worker: int) -> None:
    if worker == 1:
        fakes.die()


def test_killed_while_it_starts(make: Any) -> None:
    pipeline = make(initialise=dying_initially)
    with pytest.raises(WorkersDied, match=KILLED):
        start_and_finish(pipeline, requests(fakes.nothing, fakes.nothing))


class DyingWhenRead(Doing):
    """Ends the process that unpickles it, long before its end."""

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
    """Multiprocessing itself would wait for ever to write the rest of it."""
    pipeline = make(DyingWhenRead(), multiprocessing_context=method, num_workers=1)
    with pytest.raises(WorkersDied, match="exited unexpectedly"):
        start_and_finish(pipeline, requests(fakes.nothing))


def test_requests_of_the_dead_do_not_hold_back_the_end(make: Any, gate: Gate) -> None:
    """More than a pipe holds is still to be sent to a worker that is dead."""
    before = set(threading.enumerate())
    pipeline = make(prefetch_factor=4)
    load = bytes(1 << 20)
    pipeline.start(iter([request(i, gate.action, seed=load) for i in range(8)]))
    gate.reached()
    fakes.kill(pipeline, 0, 1)
    with pytest.raises(WorkersDied):
        next(pipeline)
    pipeline.close()
    assert set(threading.enumerate()) <= before


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
    """What happened is told in torch's words."""
    pipeline = make(num_workers=1)
    pipeline.start(requests(action))
    pid = pipeline.workers[0].pid
    with pytest.raises(WorkersDied) as died:
        next(pipeline)
    assert str(pid) in died.value.what
    assert what in died.value.what


def test_a_hanging_worker_is_found_by_timeout(make: Any, gate: Gate) -> None:
    pipeline = make(timeout=0.2)
    pipeline.start(requests(gate.action, fakes.nothing))
    gate.reached()
    with pytest.raises(WorkersDied, match=r"^DataLoader timed out after 0\.2 seconds$") as died:
        next(pipeline)
    assert ordinal_of(died.value) == 0


@pytest.mark.parametrize("batch", [fakes.large, fakes.shared])
def test_a_stopped_worker_is_found_by_timeout(make: Any, batch: Callable[[], Any]) -> None:
    """A batch has begun to arrive, whose rest only the stopped worker can hand over."""
    pipeline = make(timeout=0.2, num_workers=1)
    pipeline.start(requests(batch))
    pipeline._torch_workers.wait()
    fakes.kill(pipeline, 0, sig=signal.SIGSTOP)
    with pytest.raises(WorkersDied, match="timed out"):
        next(pipeline)


def test_a_child_that_outlives_the_worker_holds_nobody_back(make: Any, gate: Gate) -> None:
    """It keeps the pipe open behind half a message, and the worker's sentinel."""
    pipeline = make(num_workers=1)
    pipeline.start(requests(partial(fakes.leaving_a_child, gate.action)))
    gate.reached()
    pipeline._torch_workers.wait()
    fakes.kill(pipeline, 0)
    with pytest.raises(WorkersDied, match=KILLED):
        next(pipeline)
    pipeline.close()


def test_out_of_order_the_oldest_without_an_answer_is_named(make: Any, gate: Gate) -> None:
    pipeline = make(in_order=False)
    pipeline.start(requests(gate.action, fakes.nothing, fakes.nothing, fakes.nothing))
    gate.reached()
    assert next(pipeline)[0].ordinal == 1
    fakes.kill(pipeline, 0)
    _, died = until_death(pipeline)
    assert ordinal_of(died) == 0


def test_an_interrupt_within_a_batch_is_no_wrong_batch(make: Any, monkeypatch: Any) -> None:
    """A pipeline that has lost an answer can only be closed."""
    pipeline = make(num_workers=1)
    pipeline.start(requests(*[fakes.nothing] * 4))
    receive = pipeline._torch_workers._pipe.receive

    def interrupted() -> Any:
        receive()
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline._torch_workers._pipe, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(pipeline)
    assert not pipeline.is_whole


def test_an_interrupt_while_it_waits_loses_nothing(make: Any, monkeypatch: Any) -> None:
    pipeline = make(num_workers=1)
    pipeline.start(requests(*[fakes.returning(i) for i in range(4)]))
    torch_workers, wait = pipeline._torch_workers, pipeline._torch_workers._pipe.wait
    interrupts: Iterator[BaseException] = iter([KeyboardInterrupt()])

    def waiting() -> None:
        for interrupt in interrupts:
            raise interrupt
        wait()

    monkeypatch.setattr(torch_workers._pipe, "wait", waiting)
    with pytest.raises(KeyboardInterrupt):
        next(pipeline)
    assert pipeline.is_whole
    assert answers(pipeline) == [0, 1, 2, 3]


def test_what_the_maker_refuses_to_be_pickled_with_is_no_death(make: Any) -> None:
    class Offline(Doing):
        def __reduce__(self) -> Any:
            raise ConnectionError("no route to the dataset")

    pipeline = make(Offline(), multiprocessing_context="spawn")
    with pytest.raises(ConnectionError, match="no route"):
        pipeline.start(requests(fakes.nothing))
