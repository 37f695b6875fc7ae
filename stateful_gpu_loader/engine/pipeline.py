"""Interfaces between the parts of the engine: maker, answer, pipeline; failures as answers."""

from __future__ import annotations

import dataclasses
import pickle
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.records import Request, SampleKey, Turn, WorkerStart
from stateful_gpu_loader.state.bad_samples import FoundBad


class Stopped(Exception):
    """A result is no longer needed, or this pass's workers can no longer produce it."""


class WorkersDied(Exception):
    """A pipeline has lost its workers, and can only be closed.

    Args:
        message: what happened: pids with signals or exit codes, or an expired timeout.
        oldest: the oldest unanswered request, if it is known.
        remedy: the user's remedy if new workers would be lost in the same way; None if they may
            help.
    """

    def __init__(
        self, message: str, oldest: Request | Turn | None, *, remedy: str | None = None
    ) -> None:
        self.message = message
        self.oldest = oldest
        self.remedy = remedy
        super().__init__(message)


def described(request: Any) -> str:
    """Describe in words the samples that a request is made from."""
    indices = getattr(request, "indices", None)
    if indices is None:
        return f"at the turn of worker {request.worker}"
    listed = request.index_list()
    shown = ", ".join(map(repr, listed[:8])) + (", ..." if len(listed) > 8 else "")
    return f"at the batch of dataset indices {shown}"


class Maker(Protocol):
    """Makes one batch from one request: a pure function, in any worker, at any time."""

    @property
    def uses_global_generators(self) -> bool:
        """Whether the maker leaves the process's global generators changed."""
        ...

    def __call__(self, request: Any, check: Callable[[], None]) -> Any:
        """Return the batch, or an :class:`Answer` if there is more to report.

        ``check`` is called between samples and may raise :class:`Stopped`.
        """
        ...


class StatefulMaker(Maker, Protocol):
    """A maker with a stateful user object; each worker has one and calls it in order."""

    def begin(self, start: WorkerStart) -> None:
        """Prepare this worker for a new pass."""
        ...

    def snapshot(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """A batch with further information."""

    payload: Any
    """The batch, its :class:`Failure`, or a :class:`NoBatch`."""
    worker: int = 0
    """Number of the worker that made the batch."""
    snapshot: Any = None
    """State of the worker after this batch: serialized, or :class:`LaneProgress` for lanes."""
    bad: tuple[FoundBad, ...] = ()
    """Samples that could not be used."""
    ended_at: int | None = None
    """Position at which the epoch was found to end."""
    num_samples: int | None = None
    """Number of samples in the batch; None for the number of the request's indices."""


class NoBatch:
    """Marks the absence of a batch; pickling preserves its identity."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __reduce__(self) -> str:
        return self._name


NOTHING = NoBatch("NOTHING")
"""Payload of a worker whose iterator has ended."""
SKIPPED = NoBatch("SKIPPED")
"""Payload of a request without a batch."""


class Pipeline(Protocol):
    """Executes requests ahead of the user and returns their answers, by default in order."""

    @property
    def is_whole(self) -> bool:
        """Whether the exception that left ``next()`` interrupted nothing, for instance only a wait.

        Otherwise the pipeline can only be closed.
        """
        ...

    @property
    def is_collected(self) -> bool:
        """Whether the garbage collector has ended the workers.

        It runs the finalizers of a reference cycle while ``__del__`` can still use its objects.
        """
        ...

    @property
    def workers(self) -> list[Any]:
        """The living worker processes of this machine; empty if the workers are not processes."""
        ...

    def launch(self) -> None:
        """Start the worker processes, if there are any, before the next pass.

        Raises:
            WorkersDied: the workers died while they started.
        """
        ...

    def start(
        self,
        requests: Iterator[Any],
        starts: Sequence[WorkerStart] | None = None,
    ) -> None:
        """Begin a pass and abandon the requests of an earlier pass.

        Args:
            requests: requests to execute. An exception from the iterator is raised in its place
                among the batches.
            starts: for each worker, the argument of :meth:`StatefulMaker.begin`, which is called
                before its first request; None for makers without state.

        Raises:
            WorkersDied: the workers died while they started.
        """
        ...

    def __next__(self) -> tuple[Any, Any]:
        """Return the next request with its batch, its :class:`Failure`, or an :class:`Answer`.

        Raises:
            WorkersDied: a worker died or exceeded the timeout and was not replaced.
        """
        ...

    def is_ready(self) -> bool:
        """Whether ``next()`` would return without waiting; False if that is not known."""
        ...

    def depth(self) -> tuple[int, int]:
        """Return the numbers of batches in progress and of batches that are ready."""
        ...

    def close(self) -> None: ...


def execute(
    maker: Maker,
    request: Any,
    check: Callable[[], None],
    failed: Callable[[Any], Any],
    *,
    worker: int = 0,
) -> Any:
    """Answer one request; exceptions and the worker's state become part of the answer.

    All types of workers use this function.
    """
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
    """An exception in place of a batch, raised when its turn comes."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def reraise(self) -> NoReturn:
        """Raise the exception in the user's thread, with its own type.

        StopIteration, which would end the user's loop, becomes a RuntimeError.
        """
        try:
            if isinstance(self.error, StopIteration):
                raise RuntimeError(
                    "StopIteration was raised where a batch was made, not where an epoch ends"
                ) from self.error
            raise self.error
        finally:
            # The traceback refers to this frame, and a cycle would keep workers alive.
            del self


class BeginFailure(Failure):
    """A worker's exception before its first request; no request was started."""


def never_stopped() -> None:
    """Do nothing, as the ``check`` of requests that cannot be abandoned."""


def add_note(error: Exception, note: str) -> Exception:
    """Add a note to an exception and return it."""
    noted: Any = error
    noted.__notes__ = [*getattr(error, "__notes__", ()), note]
    return error


@contextmanager
def noting_sample(key: SampleKey) -> Iterator[None]:
    """Add a note with the dataset index to exceptions of the user's code."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, Stopped):
            add_note(
                error, f"in dataset index {key.index} (position {key.position}, epoch {key.epoch})"
            )
        raise


class RemoteFailure:
    """An exception of another process, with its traceback as text.

    This package's own errors are sent unchanged. For others, the type, or its nearest base class
    that can be pickled, is rebuilt with a message that contains the traceback, as in torch's
    DataLoader.
    """

    def __init__(self, error: BaseException, where: str) -> None:
        text = as_text(error)
        self._message = f"Caught {type(error).__name__} {where}.\nOriginal {text}"
        self._type = next(base for base in type(error).__mro__ if _can_be_sent(base))
        self._own: LoaderError | None = None
        if isinstance(error, LoaderError) and _can_be_sent(error):
            self._own = error

    is_begin_failure = False

    def at_the_beginning(self) -> RemoteFailure:
        """Mark the failure as raised before any request, and return it."""
        self.is_begin_failure = True
        return self

    def rebuild(self) -> BaseException:
        if self._own is not None:
            self._own.__cause__ = LoaderError(self._message)
            return self._own
        kind: Any = self._type
        # KeyError shows the repr of its argument, which would put the traceback on one line.
        message = _Verbatim(self._message) if issubclass(kind, KeyError) else self._message
        try:
            error = kind(message=message) if getattr(kind, "message", None) else kind(message)
        except Exception:  # it expects other arguments
            error = None
        return error if isinstance(error, BaseException) else RuntimeError(message)


def with_failure_rebuilt(answer: Any) -> Any:
    """Return an answer of another process with its exception, if any, rebuilt."""
    if isinstance(answer, RemoteFailure):
        kind = BeginFailure if answer.is_begin_failure else Failure
        return kind(answer.rebuild())
    if isinstance(answer, Answer) and isinstance(answer.payload, RemoteFailure):
        return dataclasses.replace(answer, payload=Failure(answer.payload.rebuild()))
    return answer


def as_text(error: BaseException) -> str:
    """Return the traceback with all notes, which Python < 3.11 would omit."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    return text + "".join(f"{note}\n" for note in notes if note not in text)


def without_frames(error: Exception) -> Exception:
    """Return the exception for later use, with its traceback as a note.

    A traceback refers to all callers' locals, and so to the loader's workers.
    """
    if hasattr(error, "add_note"):
        error.add_note("Original " + "".join(traceback.format_exception(error)))
    return error.with_traceback(None)


class _Verbatim(str):
    """Text that is its own repr."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _can_be_sent(what: Any) -> bool:
    """Whether an exception or exception type survives pickling."""
    kind = what if isinstance(what, type) else type(what)
    if not issubclass(kind, BaseException):
        return False
    try:
        return isinstance(pickle.loads(pickle.dumps(what)), kind if kind is not what else type)
    except Exception:
        return False
