"""The contracts between the rooms of the engine: executor, answer, pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from torch._utils import ExceptionWrapper

from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.records import Request, SampleKey


class Stopped(Exception):
    """Raised in a worker thread whose work nobody waits for any more."""


class Executor(Protocol):
    """Makes one batch of one request: a pure function (law 1), in any worker, at any time."""

    uses_global_generators: bool
    """Whether it seeds and draws from the process's global generators."""

    def __call__(self, request: Request, check: Callable[[], None]) -> Any:
        """The batch; ``check`` is called between samples and may raise :class:`Stopped`."""
        ...


class Pipeline(Protocol):
    """Runs requests ahead of the user and answers them in order."""

    def start(self, requests: Iterator[Request]) -> None:
        """Begin a pass; requests of an earlier one are abandoned."""
        ...

    def __next__(self) -> tuple[Request, Any]:
        """The next request and its batch, or its :class:`Failure`."""
        ...

    def close(self) -> None:
        """End the workers; nothing can be started afterwards."""
        ...


@dataclass(frozen=True)
class Failure:
    """An exception that stands in for a batch, until its turn to be raised comes."""

    error: Exception | None
    """The exception itself, where it can travel."""
    wrapper: ExceptionWrapper | None = None
    """Its type and traceback as text, from another process."""

    @classmethod
    def from_worker(cls, error: Exception, where: str) -> Failure:
        """Pack the exception being handled so that it survives pickling."""
        wrapper = ExceptionWrapper(where=where)
        return cls(error if isinstance(error, LoaderError) else None, wrapper)

    def reraise(self) -> None:
        """Raise it in the user's thread with its own type, as torch's DataLoader does."""
        if self.error is None and self.wrapper is not None:
            self.wrapper.reraise()
        if self.error is not None and self.wrapper is not None:
            raise self.error from LoaderError(f"Original {self.wrapper.exc_msg}")
        if self.error is not None:
            raise self.error


def never_stopped() -> None:
    """The ``check`` of a request that is executed where it cannot be abandoned."""


@contextmanager
def note(key: SampleKey) -> Iterator[None]:
    """Add to an exception of the user's code which sample it came from (Python >= 3.11)."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, Stopped) and hasattr(error, "add_note"):
            error.add_note(
                f"in dataset index {key.index} (position {key.position}, epoch {key.epoch})"
            )
        raise
