"""Worker processes leave nothing."""

from __future__ import annotations

import gc
import os
import signal
import threading
from multiprocessing.connection import Connection
from multiprocessing.util import get_temp_dir
from typing import Any

import pytest
import torch

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.engine.workers.channel import Channel
from stateful_gpu_loader.engine.workers.worker_main import end_with
from tests.engine.workers import fakes
from tests.engine.workers.fakes import Gate, children, fds, request, requests
from tests.patience import seconds
from tests.prepared_processes import CONTEXT


def left() -> tuple[int, int, int, int]:
    """Return the numbers of file descriptors, threads, children and files of shared memory."""
    shared = len([name for name in os.listdir("/dev/shm") if str(os.getpid()) in name])
    return len(fds()), threading.active_count(), len(children()), shared


def endless() -> Any:
    i = 0
    while True:
        yield request(i, [fakes.nothing, fakes.large, fakes.shared][i % 3])
        i += 1


@pytest.mark.filterwarnings("ignore:worker . was lost:RuntimeWarning")
@pytest.mark.parametrize("persistent", [True, False])
def test_fifty_starts_with_kills_leave_nothing(persistent: bool) -> None:
    before = None
    pipeline = fakes.processes(persistent_workers=persistent)
    for turn in range(50):
        pipeline.start(endless())
        for _ in range(turn % 4):
            next(pipeline)
        if turn % 5 != 4:
            fakes.kill(pipeline, *[(0,), (1,), (0, 1)][turn % 3])
            for _ in range(4):
                next(pipeline)
        pipeline.close()
        if before is None:
            gc.collect()  # left by other tests
            before = left()  # multiprocessing's own helpers are started by now
    assert left() == before


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_keep_their_sockets_where_the_main_process_cleans_up(
    make: Any, method: str
) -> None:
    """Otherwise a killed worker would leave its directory forever."""
    pipeline = make(multiprocessing_context=method)
    pipeline.start(requests(*[get_temp_dir] * 4))
    assert fakes.answers(pipeline) == [get_temp_dir()] * 4


@pytest.mark.parametrize("killed", [True, False])
def test_a_pipeline_that_is_dropped_ends_its_workers_at_once(gate: Gate, killed: bool) -> None:
    """Without waiting for the garbage collector to find a cycle."""
    gc.collect()
    gc.disable()
    try:
        before = left()
        pipeline = fakes.processes()
        pipeline.start(requests(fakes.nothing, fakes.shared, gate.action, *[fakes.large] * 9))
        next(pipeline)
        batch = next(pipeline)
        gate.reached()
        if killed:
            fakes.kill(pipeline, 1)
        gate.open()
        del pipeline
        assert torch.equal(batch[1], fakes.shared())
        del batch
        assert left() == before
    finally:
        gc.enable()


def test_requests_that_failed_do_not_keep_the_workers() -> None:
    """The traceback of a waiting exception holds all frames above it."""

    def failing() -> Any:
        yield request(0, fakes.nothing)
        yield request(1, fakes.nothing)
        raise OSError

    gc.collect()
    gc.disable()
    try:
        before = left()
        pipeline = fakes.processes()
        pipeline.start(failing())
        next(pipeline)
        del pipeline
        assert left() == before
    finally:
        gc.enable()


def test_a_hung_worker_is_ended_by_close(gate: Gate, monkeypatch: Any) -> None:
    monkeypatch.setattr("stateful_gpu_loader.engine.workers.processes._SECONDS_TO_CLEAN_UP", 0.1)
    pipeline = fakes.processes(num_workers=1)
    pipeline.start(requests(gate.action))
    gate.reached()
    worker = pipeline.workers[0]
    fakes.kill(pipeline, 0, sig=signal.SIGSTOP)  # it does not even see SIGTERM
    pipeline.close()
    assert not worker.is_alive()


def test_killed_in_the_middle_of_a_polite_end(gate: Gate, monkeypatch: Any) -> None:
    """The end waits for nothing that a dead worker holds."""
    pipeline = fakes.processes()
    pipeline.start(requests(gate.action, *[fakes.large] * 3))
    gate.reached()
    workers, end = pipeline.workers, Channel.end

    def end_just_before_a_kill(self: Channel) -> None:
        end(self)
        os.kill(workers[1].pid, signal.SIGKILL)
        gate.open()

    monkeypatch.setattr(Channel, "end", end_just_before_a_kill)
    pipeline.close()
    assert not any(worker.is_alive() for worker in workers)


def wait_with_an_end(end: Connection) -> None:
    end_with(end.fileno())
    signal.pause()


def test_a_process_ends_with_another() -> None:
    """Workers of a forkserver end with the main process, although their parent is the server."""
    end, held = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=wait_with_an_end, args=(end,))
    process.start()
    held.close()
    process.join(seconds(10))
    assert process.exitcode == 1


def test_a_forked_child_leaves_the_workers_alone() -> None:
    """The child has all the objects, but not the threads and workers."""
    pipeline = fakes.processes()
    pipeline.start(requests(*[fakes.returning(i) for i in range(6)]))
    assert next(pipeline)[1] == 0
    pid = os.fork()
    if pid == 0:
        pipeline.close()
        del pipeline
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert fakes.answers(pipeline) == [1, 2, 3, 4, 5]


def test_worker_processes_need_no_thread_of_the_main_process() -> None:
    before = set(threading.enumerate())
    batches = iter(StatefulGPULoader(range(20), batch_size=4, num_workers=2))
    next(batches)
    assert set(threading.enumerate()) <= before  # threads of earlier tests may end
