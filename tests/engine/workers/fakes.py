"""A maker that does what each request says, and gates at which its workers wait."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

import torch
from torch.utils.data import get_worker_info

from stateful_gpu_loader.engine.pipeline import WorkersDied
from stateful_gpu_loader.engine.workers.processes import ProcessPipeline
from stateful_gpu_loader.engine.workers.torch_workers import InnerLoader
from stateful_gpu_loader.records import Request, WorkerStart


class Doing:
    """Calls the one index of a request; notes when it is begun, and what it did since."""

    uses_global_generators = False

    def __init__(self, *, refusing: int = 0) -> None:
        self.refusing = refusing
        """How many times begin() fails."""
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
    """A place where a worker waits until the test opens it, or for ever."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: IO[bytes] | None = None
        os.mkfifo(path)

    @property
    def action(self) -> Callable[[], str]:
        """What makes a worker wait here."""
        return partial(_wait_at, self._path)

    def reached(self) -> None:
        """Return when a worker waits here."""
        self._held = self._path.open("wb", buffering=0)

    def open(self) -> None:
        """Let it go."""
        if self._held is not None:
            self._held.close()
            self._held = None


def request(ordinal: int, action: Any, **fields: Any) -> Request:
    place = {"ordinal": ordinal, "start": ordinal, "end": ordinal + 1}
    return Request(**{"seed": 0, "epoch": 0, "step": 1, "indices": [action], **place, **fields})


def requests(*actions: Callable[[], Any], **fields: Any) -> Iterator[Request]:
    """One request for each action."""
    return iter([request(ordinal, action, **fields) for ordinal, action in enumerate(actions)])


def starts(count: int) -> list[WorkerStart]:
    return [WorkerStart(seed=0, epoch=0, place=w, stride=count, state=None) for w in range(count)]


def processes(maker: Any = None, **changes: Any) -> ProcessPipeline:
    arguments: dict[str, Any] = {
        "dataset": "the user's dataset",
        "base_seed": 1,
        "num_workers": 2,
        "prefetch_factor": 2,
        "timeout": 0,
        "initialise": None,
        "multiprocessing_context": "fork",
        "persistent_workers": False,
    }
    return ProcessPipeline(InnerLoader(maker or Doing(), **{**arguments, **changes}))


def answers(pipeline: Any) -> list[Any]:
    """All that is left."""
    found = []
    while True:
        try:
            found.append(next(pipeline)[1])
        except StopIteration:
            return found


def until_death(pipeline: Any) -> tuple[list[Any], WorkersDied]:
    """The answers that still come, and the death behind them."""
    found = []
    while True:
        try:
            found.append(next(pipeline)[1])
        except WorkersDied as error:
            return found, error


def children() -> set[str]:
    """The pids of all children of this process, the dead that nobody collected included."""
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # the thread has ended
            found.update((task / "children").read_text().split())
    return found


def fds() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def kill(pipeline: ProcessPipeline, *numbers: int, sig: int = signal.SIGKILL) -> None:
    for number in numbers:
        pid = pipeline.workers[number].pid
        os.kill(pid, sig)
        if sig == signal.SIGSTOP:  # its threads stop one by one
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


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
    """More than fits into a pipe."""
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
    """A large batch, while a child of the worker holds everything that the worker has open."""
    if os.fork() == 0:
        gate()
        os._exit(0)
    return large()


def _identity(value: Any) -> Any:
    return value


def _wait_at(path: Path) -> str:
    path.read_bytes()
    return path.name
