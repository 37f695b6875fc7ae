"""The contracts between the rooms of the engine: maker, answer, pipeline."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from stateful_gpu_loader.records import Request, SampleKey, Turn, WorkerStart
from stateful_gpu_loader.state.bad_samples import FoundBad


class Stopped(Exception):
    """Raised in a worker thread whose work nobody waits for any more."""


class WorkersDied(Exception):
    """A pipeline lost its workers, or gave them up: it can only be closed.

    Args:
        what: what happened, for a person: pids with signals or exit codes, or a time that ran out.
        oldest: the oldest request that was not answered, if it is known.
    """

    def __init__(self, what: str, oldest: Request | Turn | None) -> None:
        self.what = what
        self.oldest = oldest
        super().__init__(what)


class Maker(Protocol):
    """Makes one batch of one request: a pure function, in any worker, at any time."""

    uses_global_generators: bool
    """Whether it seeds and draws from the process's global generators."""

    def __call__(self, request: Any, check: Callable[[], None]) -> Any:
        """The batch, or an :class:`Answer` where there is more to say.

        ``check`` is called between samples and may raise :class:`Stopped`.
        """
        ...


class StatefulMaker(Maker, Protocol):
    """A maker over a user's object that carries state: one in each worker, in its order."""

    def begin(self, start: WorkerStart) -> None:
        """A pass begins for this worker."""
        ...

    def snapshot(self) -> bytes:
        """The frozen state, as it is now."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """A batch about which there is more to say."""

    payload: Any
    """The batch, its :class:`Failure`, or a :class:`NoBatch`."""
    worker: int = 0
    """Who made it."""
    snapshot: bytes | None = None
    """The worker's frozen state behind it."""
    bad: tuple[FoundBad, ...] = ()
    """Samples that could not be used."""
    ended_at: int | None = None
    """The position at which the epoch was found to end; nothing behind it is delivered."""


class NoBatch:
    """What stands in the place of a batch; the same object after a journey between processes."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __reduce__(self) -> str:
        return self._name


NOTHING = NoBatch("NOTHING")
"""The payload of a worker whose iterator has ended."""
SKIPPED = NoBatch("SKIPPED")
"""The payload of a request that has no batch: a lane's that has not enough left."""


class Pipeline(Protocol):
    """Runs requests ahead of the user and answers them, in order unless it was told otherwise."""

    def launch(self) -> None:
        """Start worker processes already, where there are any, for the pass that begins next.

        Raises:
            WorkersDied: they died while they started.
        """
        ...

    def start(
        self,
        requests: Iterator[Any],
        starts: Sequence[WorkerStart] | None = None,
        *,
        one_at_a_time: bool = False,
    ) -> None:
        """Begin a pass; requests of an earlier one are abandoned.

        Args:
            requests: an exception of theirs is raised at its turn, and they are asked again.
            starts: for each worker what :meth:`StatefulMaker.begin` is called with before its
                first request; None for makers without state.
            one_at_a_time: never have more than one request under way (and so find out which one
                kills its worker).

        Raises:
            WorkersDied: they died while they started.
        """
        ...

    def __next__(self) -> tuple[Any, Any]:
        """The next request and its batch, its :class:`Failure`, or an :class:`Answer`.

        Raises:
            WorkersDied: a worker died or outlasted the timeout; nothing can be read any more.
        """
        ...

    def is_ready(self) -> bool:
        """Whether ``next()`` has nothing to wait for; a pipeline may not know, and say no."""
        ...

    def close(self) -> None:
        """End the workers of the pass."""
        ...


def execute(
    maker: Maker,
    request: Any,
    check: Callable[[], None],
    failed: Callable[[Any], Any],
    *,
    worker: int = 0,
) -> Any:
    """Answer one request, its exception and the worker's state included; the one way to do it."""
    try:
        answer = maker(request, check)
    except Stopped:
        raise
    except Exception as error:
        answer = failed(error)
    if isinstance(answer, Answer) and isinstance(answer.payload, Failure):
        answer = dataclasses.replace(answer, payload=failed(answer.payload.error))
    has_snapshot = isinstance(answer, Answer) and answer.snapshot is not None
    if has_snapshot or not request.snapshot:
        return answer
    stateful: Any = maker
    if not isinstance(answer, Answer):
        answer = Answer(answer)
    try:
        snapshot = stateful.snapshot()
    except Exception as error:
        return Answer(failed(error), worker=worker)
    return dataclasses.replace(answer, worker=worker, snapshot=snapshot)


class Failure:
    """An exception that stands in for a batch, until its turn to be raised comes."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def reraise(self) -> NoReturn:
        """Raise it in the user's thread, with its own type.

        But a StopIteration, which would end the user's loop as if the epoch were over.
        """
        try:
            if isinstance(self.error, StopIteration):
                raise RuntimeError(
                    "StopIteration was raised where a batch was made, not where an epoch ends"
                ) from self.error
            raise self.error
        finally:
            # The traceback holds this frame: without this, a cycle would keep the workers alive.
            del self


class BeginFailure(Failure):
    """What a worker raised before its first request: no request has been touched."""


def never_stopped() -> None:
    """The ``check`` of a request that is executed where it cannot be abandoned."""


def add_note(error: Exception, note: str) -> Exception:
    """Tell where an exception came from, and return it.

    Python 3.10 does not print notes, but the worker processes' tracebacks hold them.
    """
    noted: Any = error
    noted.__notes__ = [*getattr(error, "__notes__", ()), note]
    return error


@contextmanager
def noting_sample(key: SampleKey) -> Iterator[None]:
    """Add to an exception of the user's code which sample it came from."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, Stopped):
            add_note(
                error, f"in dataset index {key.index} (position {key.position}, epoch {key.epoch})"
            )
        raise
