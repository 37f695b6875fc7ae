"""A simulated cluster in which any worker can be lost at any moment.

All workers run in one separate process, because this process's generators belong to the loader.
They act only during ``receive()``, one event at a time, in an order that a seed decides.
"""

from __future__ import annotations

import multiprocessing
import pickle
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data._utils import worker as torch_worker

from stateful_gpu_loader.engine.pipeline import Stopped
from stateful_gpu_loader.engine.torch_names import become_worker
from stateful_gpu_loader.engine.workers.cluster import (
    Answered,
    Event,
    Lost,
    Started,
    Unreadable,
)
from stateful_gpu_loader.engine.workers.worker_main import (
    WorkerAdapter,
    WorkerMessage,
    replacement_for,
)


@dataclass
class _Worker:
    place: int
    has_started: bool = False
    messages: deque[tuple[int, WorkerMessage, int]] = field(default_factory=deque)


@dataclass(kw_only=True)
class FakeWorkers:
    """Options to pass as ``worker_type``. Their clusters are in :attr:`clusters`."""

    seed: int = 0
    threads: int = 1
    max_in_flight: int | None = None
    decode_on: str = "device"
    fault: Callable[[FakeCluster], Event | None] = lambda cluster: None
    """Called before each event; may return another event in its place."""
    clusters: list[FakeCluster] = field(default_factory=list)
    packed: list[Any] = field(default_factory=list)
    """All answers, as they were sent."""
    pickler: type[pickle.Pickler] = pickle.Pickler

    def connect(self, adapter: WorkerAdapter, *, num_workers: int, base_seed: int) -> FakeCluster:
        self.clusters.append(FakeCluster(self, pickle.dumps(adapter), num_workers, base_seed))
        return self.clusters[-1]


class FakeCluster:
    """Workers in one process, each with a copy of the loader's maker."""

    queues = False

    def __init__(self, options: FakeWorkers, work: bytes, num_workers: int, base_seed: int) -> None:
        self._options = options
        self._work = work
        self._of_all = num_workers, base_seed
        self._random = random.Random(options.seed)
        self._lock = threading.RLock()
        self._more = threading.Condition(self._lock)
        self.workers: dict[int, _Worker] = {}
        self.num_started = self.num_sent = 0
        self.held: set[int] = set()
        """Workers that do nothing."""
        self.is_closed = False
        self._process: Any = None
        self._pipe: Any = None

    @property
    def processes(self) -> list[Any]:
        return []

    def start(self, worker: int, place: int) -> None:
        with self._lock:
            self.workers[worker] = _Worker(place)
            self.num_started += 1
            self._more.notify_all()

    def send(self, worker: int, number: int, message: WorkerMessage, *, first: int) -> None:
        with self._lock:
            self.num_sent += 1
            if worker in self.workers:  # it may be lost already, and not yet reported
                try:
                    content = pickle.dumps(message)
                except Exception as error:
                    content = pickle.dumps(replacement_for(message, error))
                sent = pickle.loads(content)
                self.workers[worker].messages.append((number, sent, first))
                self._more.notify_all()

    def wait(self, seconds: float) -> None:
        with self._lock:
            self._more.wait_for(lambda: self.is_closed or self._busy(), seconds)

    def receive(self) -> Event | None:
        with self._lock:
            if self.is_closed or not self._busy():
                return None
            event = self._options.fault(self)
            return self._next() if event is None else event

    def lose(self, worker: int) -> Lost:
        """Lose a worker with all its requests."""
        with self._lock:
            del self.workers[worker]
            return Lost(worker, "a test ended it")

    def lose_answer(self) -> Event | None:
        """Let the next event happen, and lose it if it is an answer."""
        with self._lock:
            event = self._next()
        return Unreadable(event.number, "a test lost it") if isinstance(event, Answered) else event

    def kill(self, worker: int) -> None:
        with self._lock:
            self.workers.pop(worker, None)
            self.held.discard(worker)

    def release(self) -> None:
        """Let all held workers continue."""
        with self._lock:
            self.held.clear()
            self._more.notify_all()

    def resources(self) -> str:
        return "the fake cluster has none"

    def close(self) -> None:
        with self._lock:
            self.is_closed = True
            self.workers.clear()
            self._more.notify_all()
            if self._process is not None:
                self._process.kill()
                self._process.join()
                self._pipe.close()
                self._process = None

    def _busy(self) -> list[int]:
        return [
            number
            for number, worker in self.workers.items()
            if (worker.messages or not worker.has_started) and number not in self.held
        ]

    def _next(self) -> Event | None:
        number = self._random.choice(self._busy())
        worker = self.workers[number]
        if not worker.has_started:
            worker.has_started = True
            self._ask(number, worker.place)
            return Started(number)
        request, message, first = worker.messages.popleft()
        packed = self._ask(number, (request, message, first))
        self._options.packed.append(packed)
        return Answered(request, packed)

    def _ask(self, worker: int, what: Any) -> Any:
        if self._process is None:
            fork = multiprocessing.get_context("fork")
            self._pipe, theirs = fork.Pipe()
            arguments = theirs, self._work, *self._of_all
            self._process = fork.Process(target=_work, args=arguments, daemon=True)
            self._process.start()
            theirs.close()
        self._pipe.send((worker, what))
        return self._pipe.recv()


def _work(pipe: Any, work: bytes, num_workers: int, base_seed: int) -> None:
    """Act as all workers of a cluster, in a separate process."""
    adapters: dict[int, tuple[int, WorkerAdapter]] = {}
    while True:
        number, what = pipe.recv()
        if isinstance(what, int):
            adapter: WorkerAdapter = pickle.loads(work)
            become_worker(what, adapter, num_workers=num_workers, base_seed=base_seed)
            adapter.start(what)
            adapters[number] = what, adapter
            pipe.send(None)
            continue
        place, adapter = adapters[number]
        dataset = adapter._dataset
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=place, num_workers=num_workers, seed=base_seed + place, dataset=dataset
        )
        pipe.send(_answer(adapter, *what))


def _answer(adapter: WorkerAdapter, number: int, message: WorkerMessage, first: int) -> Any:
    def check() -> None:
        if number < first:
            raise Stopped

    return adapter.answer(message, check)
