"""The contracts between the rooms of the engine: executor, answer, pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol

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
        """End the workers of the pass."""
        ...


class Failure:
    """An exception that stands in for a batch, until its turn to be raised comes."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def reraise(self) -> NoReturn:
        """Raise it in the user's thread, with its own type."""
        try:
            raise self.error
        finally:
            # The traceback holds this frame: without this, a cycle would keep the workers alive.
            del self


def never_stopped() -> None:
    """The ``check`` of a request that is executed where it cannot be abandoned."""


@contextmanager
def noting_sample(key: SampleKey) -> Iterator[None]:
    """Add to an exception of the user's code which sample it came from (Python >= 3.11)."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, Stopped) and hasattr(error, "add_note"):
            error.add_note(
                f"in dataset index {key.index} (position {key.position}, epoch {key.epoch})"
            )
        raise
