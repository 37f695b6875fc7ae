"""A maker that runs the action of each request, and gates at which workers wait."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch.utils.data import get_worker_info

from stateful_gpu_loader.engine.pipeline import WorkersDied
from stateful_gpu_loader.engine.stats import Tally
from stateful_gpu_loader.engine.workers.dispatch import Dispatch
from stateful_gpu_loader.engine.workers.packing import pack
from stateful_gpu_loader.engine.workers.pool import PoolPipeline
from stateful_gpu_loader.engine.workers.processes import ProcessCluster
from stateful_gpu_loader.engine.workers.segments import WorkerSegments
from stateful_gpu_loader.engine.workers.threads import ThreadCluster
from stateful_gpu_loader.engine.workers.worker_main import WorkerAdapter
from stateful_gpu_loader.records import Request, WorkerStart


class Doing:
    """Calls the action of a request. Its snapshot lists the calls of ``begin`` and the requests."""

    uses_global_generators = False

    def __init__(self, *, refusing: int = 0) -> None:
        self.refusing = refusing
        """Number of times that begin() fails."""
        self.log: list[str] = []

    def __call__(self, request: Request, check: Callable[[], None]) -> Any:
        self.log.append(f"request {request.ordinal}")
        (action,) = request.indices
        return action()

    def begin(self, start: WorkerStart) -> None:
        if self.refusing:
            self.refusing -= 1
            raise OSError("cannot begin")
        self.log.append(f"begin {start.place}")

    def snapshot(self) -> bytes:
        return ", ".join(self.log).encode()


class Gate:
    """Makes the worker that reaches it wait until the test opens it. Later workers pass."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held = os.open(path, os.O_CREAT | os.O_WRONLY)
        fcntl.flock(self._held, fcntl.LOCK_EX)

    @property
    def action(self) -> Callable[[], str]:
        """Action that makes a worker wait here."""
        return partial(_wait_at, self._path)

    def reached(self) -> None:
        """Return once a worker waits here."""
        mark = _mark(self._path)
        while not mark.exists():
            time.sleep(0.001)
        mark.unlink()

    def open(self) -> None:
        """Release the workers."""
        fcntl.flock(self._held, fcntl.LOCK_UN)

    def close(self) -> None:
        """Release the workers at the end of a test."""
        self.open()
        os.close(self._held)


def request(ordinal: int, action: Any, **fields: Any) -> Request:
    place = {"ordinal": ordinal, "start": ordinal, "end": ordinal + 1}
    return Request(**{"seed": 0, "epoch": 0, "step": 1, "indices": [action], **place, **fields})


def requests(*actions: Callable[[], Any], **fields: Any) -> Iterator[Request]:
    return iter([request(ordinal, action, **fields) for ordinal, action in enumerate(actions)])


def starts(count: int) -> list[WorkerStart]:
    return [WorkerStart(seed=0, epoch=0, place=w, stride=count, state=None) for w in range(count)]


class FailingOnce:
    """Requests that return their ordinals, of which the third fails once."""

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException | None = error
        self.number = 0

    def __iter__(self) -> FailingOnce:
        return self

    def __next__(self) -> Request:
        if self.number == 2 and self.error is not None:
            error, self.error = self.error, None
            raise error
        if self.number == 4:
            raise StopIteration
        self.number += 1
        return request(self.number - 1, returning(self.number - 1))


HOLDERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda tensor: tensor,
    "view": lambda tensor: tensor[1:],
    "numpy": lambda tensor: tensor.numpy(),
    "detached": lambda tensor: tensor.detach(),
    "storage": lambda tensor: tensor.untyped_storage(),
    "dlpack": lambda tensor: np.from_dlpack(tensor),
    "graph": lambda tensor: tensor * torch.ones((), requires_grad=True),
}
"""Objects that refer to the memory of a tensor, by their kind."""


def processes(
    maker: Any = None,
    *,
    num_workers: int = 2,
    prefetch_factor: int = 2,
    timeout: float = 0,
    in_order: bool = True,
    initialise: Callable[[int], None] | None = None,
    multiprocessing_context: Any = "fork",
    persistent_workers: bool = False,
    max_losses: int = 3,
    segments: WorkerSegments | None = None,
) -> PoolPipeline:
    segments, tally = segments or WorkerSegments(keep=prefetch_factor), Tally()
    adapter = WorkerAdapter(
        maker or Doing(),
        "the user's dataset",
        initialise,
        partial(pack, segments=segments),
        segments,
    )
    connect = partial(
        ProcessCluster,
        adapter,
        num_workers=num_workers,
        threads=1,
        base_seed=1,
        multiprocessing_context=multiprocessing_context,
        tally=tally,
    )
    dispatch = partial(
        Dispatch,
        connect,
        num_workers=num_workers,
        limit=num_workers * prefetch_factor,
        depth=prefetch_factor,
        in_order=in_order,
        takes_turns=in_order,
        max_losses=max_losses,
        tally=tally,
    )
    return PoolPipeline(dispatch, timeout=timeout, persistent=persistent_workers, tally=tally)


def threads(
    maker: Any,
    *,
    num_workers: int = 2,
    prefetch_factor: int = 2,
    timeout: float = 0,
    in_order: bool = True,
    max_losses: int = 3,
) -> PoolPipeline:
    tally = Tally()
    dispatch = partial(
        Dispatch,
        partial(ThreadCluster, maker, threads=num_workers, times=tally),
        num_workers=1,
        limit=num_workers * prefetch_factor,
        depth=num_workers * prefetch_factor,
        threads=num_workers,
        in_order=in_order,
        max_losses=max_losses,
        tally=tally,
    )
    return PoolPipeline(dispatch, timeout=timeout, persistent=False, tally=tally)


def answers(pipeline: Any) -> list[Any]:
    found = []
    while True:
        try:
            found.append(next(pipeline)[1])
        except StopIteration:
            return found


def until_death(pipeline: Any) -> tuple[list[Any], WorkersDied]:
    """Return the remaining answers, and the death that comes after them."""
    found = []
    while True:
        try:
            found.append(next(pipeline)[1])
        except WorkersDied as error:
            return found, error


def children() -> set[str]:
    """Return the pids of this process's children, including dead ones that were not waited for."""
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # the thread has ended
            found.update((task / "children").read_text().split())
    return found


def fds() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def kill(pipeline: PoolPipeline, *numbers: int, sig: int = signal.SIGKILL) -> None:
    for number in numbers:
        pid = pipeline.workers[number].pid
        os.kill(pid, sig)
        if sig == signal.SIGSTOP:  # its threads stop one by one
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


def await_an_answer(pipeline: PoolPipeline, number: int) -> None:
    """Return once a worker has sent the reports of its start and the beginning of an answer."""
    socket = pipeline._dispatch._cluster._by_descriptor  # type: ignore[union-attr]
    (channel,) = {w.channel for w in socket.values() if w.place == number}
    head = bytearray(4)
    while True:
        fcntl.ioctl(channel.fileno(), termios.FIONREAD, head)
        if int.from_bytes(head, sys.byteorder) > _REPORTS:
            return
        time.sleep(0.001)


_REPORTS = 200
"""Bytes: more than the reports of a worker's start have, and fewer than an answer has."""


def nothing() -> int:
    return 0


def returning(value: Any) -> Callable[[], Any]:
    return partial(_identity, value)


def worker_number() -> Any:
    worker = get_worker_info()
    return worker.id if worker is not None else None


def users_dataset() -> Any:
    worker = get_worker_info()
    return worker.dataset if worker is not None else None


def large() -> bytes:
    """Return more bytes than fit into a pipe."""
    return bytes(4 << 20)


def shared() -> torch.Tensor:
    return torch.ones(1 << 18)


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit


def leave(code: int) -> NoReturn:
    os._exit(code)


def failing() -> NoReturn:
    raise KeyError("no such sample")


def failing_with_a_local_type() -> NoReturn:
    class LocalError(ValueError):
        pass

    raise LocalError("seven")


def unpicklable() -> dict[str, Any]:
    return {"lock": threading.Lock()}


def leaving_a_child(gate: Callable[[], str]) -> bytes:
    """Return a large batch, while a child of the worker holds all of the worker's open files."""
    if os.fork() == 0:
        gate()
        os._exit(0)
    return large()


def closing_its_connection(gate: Callable[[], str]) -> str:
    """Close all sockets of the worker, which continues."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.close(int(name))
    return gate()


def _identity(value: Any) -> Any:
    return value


def _wait_at(path: Path) -> str:
    _mark(path).touch()
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
    return path.name


def _mark(path: Path) -> Path:
    return path.with_suffix(".reached")


NAME_OF_SEGMENTS = "/memfd:stateful_gpu_loader"
"""Name of segments as the system shows it."""


def mapping_of(tensor: torch.Tensor) -> str:
    """Return the line of this process's memory map that holds a tensor."""
    address = tensor.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            return line
    raise AssertionError(f"nothing is mapped at {address:#x}")
