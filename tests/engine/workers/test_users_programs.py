"""Worker processes beside the user's program: handlers, timeouts, forks, exits."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.engine.workers.channel import Channel, Sender
from stateful_gpu_loader.engine.workers.worker_main import HEAD, _answer_all
from tests.engine.workers import fakes
from tests.patience import seconds

pytestmark = pytest.mark.processes

EXIT = """
import signal, sys
from stateful_gpu_loader import StatefulGPULoader
signal.signal(signal.SIGTERM, lambda *_: None)
loader = StatefulGPULoader(
    range(64), batch_size=2, num_workers=2, persistent_workers=sys.argv[1] == "persistent",
    multiprocessing_context="fork",
)
batches = iter(loader)
next(batches)
if sys.argv[1] == "persistent":
    for _ in batches:
        pass
"""


@pytest.mark.parametrize("which", ["live", "persistent"])
def test_the_exit_waits_for_no_worker_where_a_handler_takes_sigterm(which: str) -> None:
    """A program may save a checkpoint when it is preempted; forked workers inherit its handler."""
    subprocess.run([sys.executable, "-c", EXIT, which], timeout=seconds(60), check=True)


def test_a_default_timeout_of_sockets_is_not_that_of_workers() -> None:
    socket.setdefaulttimeout(0.02)
    try:
        loader = StatefulGPULoader(range(12), batch_size=2, num_workers=2)
        found = []
        for batch in loader:
            found.append(batch.tolist())
            time.sleep(0.06)
    finally:
        socket.setdefaulttimeout(None)
    assert found == [[i, i + 1] for i in range(0, 12, 2)]
    assert loader.worker_restarts == 0


ORPHANS = """
import os, signal, sys, time
from stateful_gpu_loader import StatefulGPULoader
loader = StatefulGPULoader(range(64), num_workers=2, multiprocessing_context=sys.argv[1])
batches = iter(loader)
next(batches)
child = os.fork()
if child == 0:
    time.sleep(600)
    os._exit(0)
print(child, *(worker.pid for worker in batches._workers), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_end_with_the_main_process_though_a_child_of_it_lives(method: str) -> None:
    script = subprocess.Popen([sys.executable, "-c", ORPHANS, method], stdout=subprocess.PIPE)
    assert script.stdout is not None
    child, *workers = map(int, script.stdout.readline().split())
    try:
        script.wait()
        deadline = time.monotonic() + seconds(30)
        while any(map(_lives, workers)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(_lives, workers))
        assert len(workers) == 2
    finally:
        os.kill(child, signal.SIGKILL)
        script.stdout.close()


def test_pending_requests_are_dropped_if_the_consumer_is_gone() -> None:
    ours, theirs = map(Channel, socket.socketpair())
    made: list[Any] = []

    class Adapter:
        def answer_to(self, message: Any, check: Any) -> None:
            made.append(message)
            ours.end()

    for number in range(3):
        ours.send(HEAD.pack(number, 0), b"a request")
    unused: Any = None
    adapter: Any = Adapter()
    answers: Any = type("Answers", (), {"send": lambda *_: unused})()
    _answer_all(adapter, theirs, answers)
    assert len(made) == 1
    ours.close()
    theirs.close()


def test_a_message_that_the_socket_does_not_take_is_sent_by_a_thread() -> None:
    ours, theirs = map(Channel, socket.socketpair())
    sender, content = Sender(ours), bytes(1 << 25)
    sender.send(b"", content)
    sender.send(b"after it")
    assert any(thread.name.endswith("sender") for thread in threading.enumerate())
    assert theirs.next().body == content
    assert bytes(theirs.next().head) == b"after it"
    deadline = time.monotonic() + seconds(10)
    while sender._thread is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sender._thread is None
    ours.close()
    theirs.close()


def test_nothing_is_sent_to_a_worker_whose_loss_is_about_to_be_reported(make: Any) -> None:
    pipeline = make(fakes.Doing())
    pipeline.start(iter([fakes.request(i, fakes.nothing) for i in range(8)]))
    cluster = pipeline._dispatch._cluster
    number, worker = next(iter(cluster._workers.items()))
    worker.process.kill()
    worker.process.join()
    events = []
    while not any(type(event).__name__ == "Lost" for event in events):
        cluster.wait(1)
        cluster._look_at(worker, worker.exit.fileno())
        events = list(cluster._events)
    message: Any = fakes.request(9, fakes.nothing)
    cluster.send(number, 9, message, first=0)
