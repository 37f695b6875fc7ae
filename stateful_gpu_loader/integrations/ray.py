"""Workers of a loader as actors of a Ray cluster, on any of its machines.

``StatefulGPULoader(..., num_workers=64, worker_type="ray")`` is sufficient. Pass
:class:`RayWorkers` instead of the name to set the needs and placement of each worker. The stream is
the same as with any other workers, even if workers die.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

from stateful_gpu_loader.engine.isolation import limit_this_thread
from stateful_gpu_loader.engine.pipeline import Stopped, as_text
from stateful_gpu_loader.engine.torch_names import become_worker
from stateful_gpu_loader.engine.workers.cluster import (
    Answered,
    Event,
    Lost,
    Severed,
    Started,
    Unreadable,
)
from stateful_gpu_loader.engine.workers.worker_main import (
    WorkerAdapter,
    WorkerMessage,
    replacement_for,
)
from stateful_gpu_loader.errors import MissingDependency

_SECONDS_BETWEEN_CHECKS = 5.0
"""Interval between checks of the cluster's head."""
_SECONDS_WITHOUT_HEAD = 30.0
"""Time in which a head may restart; Ray ends a process after 60 seconds without one."""
_POLL_SECONDS = 0.05
"""Longest delay before the answer to a new message is awaited."""


@dataclass(frozen=True, kw_only=True)
class RayWorkers:
    """Configuration of a loader's workers in a Ray cluster; pass it as ``worker_type``.

    >>> RayWorkers(num_cpus=4, threads=4).threads
    4
    """

    num_cpus: float = 1
    """CPUs that each worker reserves."""
    resources: Mapping[str, float] | None = None
    """Custom resources that each worker reserves, such as ``{"decoding": 1}``."""
    scheduling: Any = "spread"
    """``"spread"`` over the nodes, ``"default"``, or one of Ray's scheduling strategies."""
    runtime_env: Mapping[str, Any] | None = None
    """Environment of the workers, as defined by Ray; None is that of the job."""
    threads: int = 1
    """Number of batches that a worker makes at a time, each in a thread; more than one needs a
    Source and recipes."""
    max_in_flight: int | None = None
    """Maximum number of batches in progress or waiting; None is ``prefetch_factor + threads - 1``
    for each worker."""
    decode_on: str = "device"
    """With a GPU as ``device=``: ``"device"`` decodes and augments there; ``"workers"`` does so on
    the workers' CPUs."""
    address: str | None = None
    """Address of the cluster, as for ``ray.init()``. None is the connected cluster, else that of
    ``RAY_ADDRESS``, else a new one here."""

    def __post_init__(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise MissingDependency("ray", needed_for="worker_type='ray'", extra="ray")
        if isinstance(self.threads, bool) or not isinstance(self.threads, int) or self.threads < 1:
            raise ValueError(f"threads={self.threads!r} must be a positive int")
        limit = self.max_in_flight
        if limit is not None and (
            isinstance(limit, bool) or not isinstance(limit, int) or limit < 1
        ):
            raise ValueError(f"max_in_flight={limit!r} must be a positive int or None")
        if self.decode_on not in ("device", "workers"):
            raise ValueError(f"decode_on={self.decode_on!r} must be 'device' or 'workers'")
        if not self.num_cpus >= 0:
            raise ValueError(f"num_cpus={self.num_cpus!r} must be a number from 0")

    @property
    def pickler(self) -> type[pickle.Pickler]:
        """Ray's pickler, which handles classes of the script that is run."""
        from ray import cloudpickle

        kind: type[pickle.Pickler] = cloudpickle.Pickler
        return kind

    def connect(self, adapter: WorkerAdapter, *, num_workers: int, base_seed: int) -> RayCluster:
        """Connect to the cluster, and store there once what all workers need.

        Raises:
            ConnectionError: there is no cluster at the address.
        """
        return RayCluster(self, adapter, num_workers=num_workers, base_seed=base_seed)


class RayCluster:
    """Exchanges messages with actors; see :class:`Cluster`."""

    queues = False

    def __init__(
        self, options: RayWorkers, adapter: WorkerAdapter, *, num_workers: int, base_seed: int
    ) -> None:
        import ray

        self._ray: Any = ray
        self._options = options
        if not ray.is_initialized():
            address = options.address or os.environ.get("RAY_ADDRESS") or "local"
            local = {"include_dashboard": False} if address == "local" else {}
            ray.init(address=address, log_to_driver=False, **local)
        self._head = _Head(ray.get_runtime_context().gcs_address)
        # As bytes, because arrays shared by actors of one node would be read-only.
        self._work = ray.put(ray.cloudpickle.dumps(adapter))
        self._of_all = num_workers, base_seed
        scheduling = options.scheduling
        self._actor = ray.remote(RayWorker).options(
            num_cpus=options.num_cpus,
            resources=dict(options.resources or {}),
            scheduling_strategy=scheduling.upper() if isinstance(scheduling, str) else scheduling,
            runtime_env=None if options.runtime_env is None else dict(options.runtime_env),
            max_concurrency=options.threads,
            max_restarts=0,
            max_task_retries=0,
        )
        # Re-entrant, because the garbage collector may end workers within it.
        self._lock = threading.RLock()
        self._has_more = threading.Event()
        self._actors: dict[int, Any] = {}
        self._expected: dict[Any, tuple[int, int | None]] = {}
        """Worker and request number (None for its start) of each expected answer."""
        self._arrived: deque[Severed | tuple[Any, int, int | None]] = deque()
        self._is_closed = False

    @property
    def processes(self) -> list[BaseProcess]:
        return []

    def start(self, worker: int, place: int) -> None:
        actor = self._actor.remote(place, *self._of_all, self._work)
        self._actors[worker] = actor
        self._expect(actor.has_started.remote(), worker, None)

    def send(self, worker: int, number: int, message: WorkerMessage, *, first: int) -> None:
        answer = self._actors[worker].answer
        try:
            reference = answer.remote(number, message, first)
        except Exception as error:
            reference = answer.remote(number, replacement_for(message, error), first)
        self._expect(reference, worker, number)

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not (self._arrived or self._is_closed) and time.monotonic() < deadline:
            severed = self._head.check()
            if severed is not None:
                self._arrived.append(severed)
                return
            self._has_more.clear()
            with self._lock:
                references = list(self._expected)
            if not references:
                self._has_more.wait(seconds)
                continue
            # Answers are transferred during the wait.
            ready, _ = self._ray.wait(
                references, num_returns=1, timeout=_POLL_SECONDS, fetch_local=True
            )
            with self._lock:
                for reference in ready:
                    expected = self._expected.pop(reference, None)
                    if expected is not None:
                        self._arrived.append((reference, *expected))

    def receive(self) -> Event | None:
        while self._arrived:
            arrived = self._arrived.popleft()
            event = arrived if isinstance(arrived, Severed) else self._event(*arrived)
            if event is not None:
                return event
        return None

    def kill(self, worker: int) -> None:
        actor = self._actors.pop(worker, None)
        with self._lock:
            for reference, (of, _) in list(self._expected.items()):
                if of == worker:
                    del self._expected[reference]
        if actor is not None and not self._head.is_lost:
            self._ray.kill(actor)

    def resources(self) -> str:
        options = self._options
        needs = {"CPU": options.num_cpus, **(options.resources or {})}
        has, free = self._ray.cluster_resources(), self._ray.available_resources()
        listed = ", ".join(
            f"{free.get(name, 0):g} of {has.get(name, 0):g} {name}" for name in needs
        )
        return f"each needs {needs}, and of the whole cluster {listed} are free"

    def close(self) -> None:
        self._is_closed = True
        self._has_more.set()
        if self._ray.is_initialized():
            for worker in list(self._actors):
                with suppress(Exception):  # a dead actor must not block the others
                    self.kill(worker)
        self._actors.clear()

    def _expect(self, reference: Any, worker: int, number: int | None) -> None:
        with self._lock:
            self._expected[reference] = worker, number
        self._has_more.set()

    def _event(self, reference: Any, worker: int, number: int | None) -> Event | None:
        errors = self._ray.exceptions
        try:
            found = self._ray.get(reference)
        except (errors.RayActorError, errors.WorkerCrashedError, errors.NodeDiedError) as error:
            return Lost(worker, _first_lines(error))
        except (errors.RuntimeEnvSetupError, errors.ActorUnschedulableError) as error:
            return Lost(worker, _first_lines(error))
        except errors.OutOfMemoryError as error:
            return Lost(worker, _first_lines(error))
        except errors.RayError as error:
            if number is None:
                return Lost(worker, _first_lines(error))
            return Unreadable(number, _first_lines(error))
        if number is not None:
            return None if found is None else Answered(number, found)
        if found is None:
            return Started(worker)
        return Severed(
            f"a worker could not be made: {found}",
            "make the dataset and the transform importable on every node, if necessary with "
            "RayWorkers(runtime_env=...)",
        )


class RayWorker:
    """The actor: makes batches, and lives as long as the loader's iterator needs it.

    Args:
        worker: number of the worker in the loader.
        num_workers, base_seed: as in torch's worker processes.
        work: the pickled :class:`WorkerAdapter`.
    """

    def __init__(self, worker: int, num_workers: int, base_seed: int, work: bytes) -> None:
        self._of_thread = threading.local()
        self._first = 0
        """Number of the first request of the newest pass."""
        self._refusal: str | None = None
        try:
            self._adapter: WorkerAdapter = pickle.loads(work)
            become_worker(worker, self._adapter, num_workers=num_workers, base_seed=base_seed)
            self._adapter.start(worker)
        except Exception as error:
            self._refusal = as_text(error)

    def has_started(self) -> str | None:
        """Return the reason why the actor could not be made, or None."""
        return self._refusal

    def answer(self, number: int, message: WorkerMessage, first: int) -> Any:
        """Return the serialized answer to a message; None if its pass was abandoned.

        Args:
            first: number of the first request of its pass.
        """
        self._first = max(self._first, first)

        def check() -> None:
            if number < self._first:
                raise Stopped

        adapter = getattr(self._of_thread, "adapter", None)
        if adapter is None:
            limit_this_thread()
            adapter = self._of_thread.adapter = self._adapter.for_this_thread()
        try:
            return adapter.answer(message, check)
        except Stopped:
            return None


class _Head:
    """Checks whether the cluster's head can be reached."""

    def __init__(self, address: str) -> None:
        self._address = address
        host, _, port = address.rpartition(":")
        self._place = host.strip("[]"), int(port)
        self._checked = time.monotonic()
        self._missed_since: float | None = None
        """Time of the first failed try; None while the head can be reached."""
        self.is_lost = False

    def check(self) -> Severed | None:
        """Try to reach the head every few seconds; return an event once it is lost."""
        now = time.monotonic()
        if self.is_lost or now - self._checked < _SECONDS_BETWEEN_CHECKS:
            return None
        self._checked = now
        try:
            socket.create_connection(self._place, timeout=_SECONDS_BETWEEN_CHECKS).close()
        except OSError as error:
            # This process itself may have been stopped before the first failed try.
            if self._missed_since is None:
                self._missed_since = now
            if now - self._missed_since < _SECONDS_WITHOUT_HEAD:
                return None
            self.is_lost = True
            return Severed(
                f"the head of the Ray cluster at {self._address} has not been reached for "
                f"{now - self._missed_since:.0f} seconds ({error})",
                "save the loader's state, call ray.shutdown() before Ray ends this process, which "
                "it does 60 seconds after the loss, and continue in another cluster",
            )
        self._missed_since = None
        return None


def _first_lines(error: BaseException) -> str:
    """Return the beginning of one of Ray's long messages as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:500]}"
