"""Interface of a cluster of workers: its methods and events."""

from __future__ import annotations

import importlib
import pickle
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, TypeAlias, runtime_checkable

from stateful_gpu_loader.engine.workers.worker_main import WorkerAdapter, WorkerMessage

_BY_NAME = {"ray": ("stateful_gpu_loader.integrations.ray", "RayWorkers")}
"""Worker types by name, imported on demand."""


@dataclass(frozen=True)
class Started:
    worker: int


@dataclass(frozen=True)
class Answered:
    number: int
    answer: Any
    """The answer, possibly still to be unpacked by the pipeline's ``unpack``."""


@dataclass(frozen=True)
class Lost:
    """A worker has died or cannot be started."""

    worker: int
    reason: str
    remedy: str | None = None
    """The remedy, if any other worker would be lost in the same way."""


@dataclass(frozen=True)
class Unreadable:
    """The answer to a request is lost, but not its worker."""

    number: int
    reason: str


@dataclass(frozen=True)
class Severed:
    """The cluster itself cannot be reached."""

    reason: str
    remedy: str


Event: TypeAlias = Started | Answered | Lost | Unreadable | Severed


class Cluster(Protocol):
    """Starts workers and exchanges messages with them.

    One thread calls ``wait`` and ``receive``. Any thread may call the other methods, one at a time.
    """

    @property
    def queues(self) -> bool:
        """Whether a worker can be sent requests before it has started."""
        ...

    @property
    def processes(self) -> list[BaseProcess]:
        """The worker processes of this machine, by place."""
        ...

    def start(self, worker: int, place: int) -> None:
        """Request a worker; :class:`Started` or :class:`Lost` reports the outcome.

        Args:
            worker: number that identifies this worker; never used twice.
            place: its number among the loader's workers, as ``get_worker_info()`` returns it.
        """
        ...

    def send(self, worker: int, number: int, message: WorkerMessage, *, first: int) -> None:
        """Send a message to a worker, which begins its requests in this order.

        A message that cannot be pickled is replaced by ``replacement_for``.

        Args:
            number: number of the request, which its answer names.
            first: number of the first request of the pass; earlier requests are abandoned.
        """
        ...

    def wait(self, seconds: float) -> None:
        """Wait up to about ``seconds`` for an event; an exception loses nothing."""
        ...

    def receive(self) -> Event | None:
        """Return the next event; None if there is none."""
        ...

    def kill(self, worker: int) -> None:
        """End a worker at once; nothing more is received from it."""
        ...

    def resources(self) -> str:
        """Describe in words what a worker needs and what the cluster has."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class RemoteWorkers(Protocol):
    """Options of workers on other machines, for ``worker_type``."""

    @property
    def threads(self) -> int:
        """Number of requests that a worker executes at the same time."""
        ...

    @property
    def max_in_flight(self) -> int | None:
        """Largest number of batches in progress or waiting; None uses the prefetch factor."""
        ...

    @property
    def decode_on(self) -> str:
        """``"device"``, or ``"workers"`` if they decode and augment even for a GPU."""
        ...

    @property
    def pickler(self) -> type[pickle.Pickler]:
        """Pickler of the workers' answers."""
        ...

    def connect(self, adapter: WorkerAdapter, *, num_workers: int, base_seed: int) -> Cluster:
        """Return the cluster, with no worker started yet.

        Args:
            adapter: each worker gets a copy.
            base_seed: seed of the workers' own generators.
        """
        ...


def remote_workers(worker_type: Any) -> RemoteWorkers | None:
    """Return the options of workers on other machines; None for other worker types.

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
