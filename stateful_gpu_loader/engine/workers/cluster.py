"""The interface of workers: what is asked of a cluster of them, and what it tells."""

from __future__ import annotations

import importlib
import pickle
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, TypeAlias, runtime_checkable

from stateful_gpu_loader.engine.workers.worker_main import WorkerAdapter, WorkerMessage

_BY_NAME = {"ray": ("stateful_gpu_loader.integrations.ray", "RayWorkers")}
"""What a name stands for as ``worker_type``. It is imported when it is asked for, as the adapters
of other packages lie above the engine."""


@dataclass(frozen=True)
class Started:
    """A worker can take requests."""

    worker: int


@dataclass(frozen=True)
class Answered:
    """A worker has answered a request."""

    number: int
    answer: Any
    """The answer, or what the pipeline's ``unpack`` makes it from."""


@dataclass(frozen=True)
class Lost:
    """A worker has died, or cannot be started; it is not used any more."""

    worker: int
    why: str
    remedy: str | None = None
    """The remedy, if any other worker would be lost in the same way."""


@dataclass(frozen=True)
class Unreadable:
    """The answer to a request is lost, and its worker is not."""

    number: int
    why: str


@dataclass(frozen=True)
class Severed:
    """The cluster itself is out of reach."""

    why: str
    remedy: str


Event: TypeAlias = Started | Answered | Lost | Unreadable | Severed


class Cluster(Protocol):
    """Starts workers and exchanges messages with them.

    ``wait`` and ``receive`` are called by one thread, and all other methods by any thread, one at a
    time.
    """

    @property
    def queues(self) -> bool:
        """Whether a worker can be sent requests before it has started."""
        ...

    @property
    def processes(self) -> list[BaseProcess]:
        """The worker processes of this machine, by their places."""
        ...

    def start(self, worker: int, place: int) -> None:
        """Ask for a worker; :class:`Started` or :class:`Lost` will tell what became of it.

        Args:
            worker: number by which this worker is known; never used twice.
            place: its number among the workers of the loader, which ``get_worker_info()`` gives.
        """
        ...

    def send(self, worker: int, number: int, message: WorkerMessage, *, first: int) -> None:
        """Send a message to a worker; the requests of one worker are begun in this order.

        What cannot be pickled is sent as ``in_place_of`` makes it.

        Args:
            number: number of the request, by which its answer is known.
            first: number of the first request of the pass; those before it are abandoned.
        """
        ...

    def wait(self, seconds: float) -> None:
        """Wait about so long, or until something happens; an exception here loses nothing."""
        ...

    def receive(self) -> Event | None:
        """Return what has happened next; None if nothing has."""
        ...

    def kill(self, worker: int) -> None:
        """End a worker at once; nothing more is received from it."""
        ...

    def resources(self) -> str:
        """Say, for a person, what a worker needs and what the cluster has."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...


@runtime_checkable
class RemoteWorkers(Protocol):
    """Options of workers on other machines; what ``worker_type`` may be besides a name."""

    @property
    def threads(self) -> int:
        """Number of requests that a worker executes at the same time."""
        ...

    @property
    def max_in_flight(self) -> int | None:
        """Largest number of batches under way or waiting; None leaves it to the prefetch factor."""
        ...

    @property
    def decode_on(self) -> str:
        """``"device"``, or ``"workers"`` where these decode and augment for a GPU, too."""
        ...

    @property
    def pickler(self) -> type[pickle.Pickler]:
        """Pickles what workers send."""
        ...

    def connect(self, adapter: WorkerAdapter, *, num_workers: int, base_seed: int) -> Cluster:
        """Return the cluster, on which no worker is started yet.

        Args:
            adapter: what each worker gets a copy of.
            num_workers: number of workers of the loader.
            base_seed: seed of the workers' own generators.
        """
        ...


def remote_workers(worker_type: Any) -> RemoteWorkers | None:
    """Return the options of workers on other machines; None if ``worker_type`` means others.

    Raises:
        MissingDependency: the package that runs them is not installed.
    """
    if not isinstance(worker_type, str):
        return worker_type if isinstance(worker_type, RemoteWorkers) else None
    if worker_type not in _BY_NAME:
        return None
    module, name = _BY_NAME[worker_type]
    made: RemoteWorkers = getattr(importlib.import_module(module), name)()
    return made
