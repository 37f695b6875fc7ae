"""ThreadCluster: workers that are threads of this process, for work that releases the GIL."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any

from stateful_gpu_loader.engine.isolation import limit_this_thread
from stateful_gpu_loader.engine.pipeline import Failure, Maker, Stopped, execute
from stateful_gpu_loader.engine.stats import StageTimes, waiting
from stateful_gpu_loader.engine.workers.cluster import Answered, Event, Started
from stateful_gpu_loader.engine.workers.worker_main import WorkerMessage

_JOIN_SECONDS = 5.0


class ThreadCluster:
    """Starts daemon threads, several per worker; see Cluster.

    Args:
        maker: shared by the threads; has no state and does not use the global generators.
        times: receives the seconds of each stage.
    """

    queues = True

    def __init__(self, maker: Maker, *, threads: int, times: StageTimes) -> None:
        self._maker = maker
        self._threads = threads
        self._times = times
        self._groups: dict[int, _ThreadGroup] = {}
        self._events = _Events()
        self._owner = os.getpid()

    def __del__(self) -> None:
        # A signal handler's exception may drop the cluster unclosed.
        for group in self._groups.values():
            group.stop()

    @property
    def processes(self) -> list[BaseProcess]:
        return []

    def start(self, worker: int, place: int) -> None:
        group = self._groups[worker] = _ThreadGroup(self._events)
        for number in range(self._threads):
            thread = threading.Thread(
                target=_work,
                args=(self._maker, group, self._times),
                name=f"stateful_gpu_loader worker {number}",
                daemon=True,
            )
            group.threads.append(thread)
            thread.start()
        self._events.put(Started(worker))

    def send(self, worker: int, number: int, message: WorkerMessage, *, first: int) -> None:
        """Hand a request to the worker; see Cluster.

        Raises:
            ValueError: the message has a state.
        """
        if message.start is not None:
            raise ValueError("threads share one maker, which therefore cannot have a state")
        group = self._groups[worker]
        group.first = first
        group.requests.put((number, message.request))

    def wait(self, seconds: float) -> None:
        self._events.wait(seconds)

    def receive(self) -> Event | None:
        return self._events.take()

    def kill(self, worker: int) -> None:
        """Abandon a worker's threads, because nothing can end a thread that hangs."""
        self._groups.pop(worker).stop()

    def resources(self) -> str:
        return f"{self._threads} threads are running"

    def close(self) -> None:
        """Stop at the next sample and wait: torch aborts if threads are inside it at exit."""
        if os.getpid() != self._owner:
            return  # a forked child has the objects, but none of the threads
        groups, self._groups = self._groups, {}
        for group in groups.values():
            group.stop()
        threads = [thread for group in groups.values() for thread in group.threads]
        if threading.current_thread() in threads:
            # The garbage collector may run in one of them, holding a lock.
            return
        deadline = time.monotonic() + _JOIN_SECONDS
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))


class _Events:
    """Events that were not received yet.

    It takes no lock, which a signal handler's exception could leave locked.
    """

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._no_news = threading.Lock()
        self._no_news.acquire()

    def put(self, event: Event) -> None:
        self._events.append(event)
        if self._no_news.locked():
            with suppress(RuntimeError):  # another thread has released it
                self._no_news.release()

    def wait(self, seconds: float) -> None:
        if not self._events:
            self._no_news.acquire(timeout=seconds)

    def take(self) -> Event | None:
        return self._events.popleft() if self._events else None


class _ThreadGroup:
    """The threads of one worker, which share its requests; has no reference to the cluster."""

    def __init__(self, events: _Events) -> None:
        self.events = events
        self.threads: list[threading.Thread] = []
        self.requests: SimpleQueue[tuple[int, Any] | None] = SimpleQueue()
        self.first = 0
        """Number of the first request of the pass; earlier requests are abandoned."""
        self.is_stopped = False

    def take(self) -> tuple[int, Any] | None:
        """Wait for a request and return it with its number; None at the end."""
        with waiting("idle"):
            taken = self.requests.get()
        return None if self.is_stopped else taken

    def check(self, number: int) -> None:
        """Raise Stopped if the answer to this request is no longer needed."""
        if self.is_stopped or number < self.first:
            raise Stopped

    def stop(self) -> None:
        self.is_stopped = True
        for _ in self.threads:
            self.requests.put(None)


def _work(maker: Maker, group: _ThreadGroup, times: StageTimes) -> None:
    limit_this_thread()
    with times.working():
        while (taken := group.take()) is not None:
            number, request = taken
            try:
                answer = execute(maker, request, partial(group.check, number), Failure)
            except Stopped:
                continue
            except BaseException as error:
                # Any exception becomes an answer.
                answer = Failure(error)
            group.events.put(Answered(number, answer))
            del answer, request, taken  # keep no batch alive while waiting
