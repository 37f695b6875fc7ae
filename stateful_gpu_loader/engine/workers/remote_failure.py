"""Exceptions that are sent between processes, or kept for later, as text."""

from __future__ import annotations

import dataclasses
import pickle
import traceback
from typing import Any

from stateful_gpu_loader.engine.pipeline import Answer, BeginFailure, Failure
from stateful_gpu_loader.errors import LoaderError


class RemoteFailure:
    """An exception of another process, with its traceback as text.

    This package's own errors are sent as they are. Of others the type is rebuilt with a message
    that contains the traceback, as torch's DataLoader does. If the type cannot be pickled, for
    instance a class inside a function, its nearest base class that can be pickled is used.
    """

    def __init__(self, error: BaseException, where: str) -> None:
        text = as_text(error)
        self._message = f"Caught {type(error).__name__} {where}.\nOriginal {text}"
        self._type = next(base for base in type(error).__mro__ if _can_be_sent(base))
        self._own: LoaderError | None = None
        if isinstance(error, LoaderError) and _can_be_sent(error):
            self._own = error

    is_of_beginning = False

    def at_the_beginning(self) -> RemoteFailure:
        """Mark the failure as one that came before any request, and return it."""
        self.is_of_beginning = True
        return self

    def rebuild(self) -> BaseException:
        """Return the exception, for the process that reports it."""
        if self._own is not None:
            self._own.__cause__ = LoaderError(self._message)
            return self._own
        kind: Any = self._type
        # KeyError shows the repr of its argument, which would put the traceback in one line.
        message = _Verbatim(self._message) if issubclass(kind, KeyError) else self._message
        try:
            error = kind(message=message) if getattr(kind, "message", None) else kind(message)
        except Exception:  # it expects other arguments
            error = None
        return error if isinstance(error, BaseException) else RuntimeError(message)


def with_failure_rebuilt(answer: Any) -> Any:
    """Return an answer of another process, with the exception that it may hold rebuilt."""
    if isinstance(answer, RemoteFailure):
        kind = BeginFailure if answer.is_of_beginning else Failure
        return kind(answer.rebuild())
    if isinstance(answer, Answer) and isinstance(answer.payload, RemoteFailure):
        return dataclasses.replace(answer, payload=Failure(answer.payload.rebuild()))
    return answer


def as_text(error: BaseException) -> str:
    """Return the exception with traceback and all notes, which Python < 3.11 would leave out."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    return text + "".join(f"{note}\n" for note in notes if note not in text)


def without_frames(error: Exception) -> Exception:
    """Return the exception for later use, with its traceback as a note.

    A traceback refers to the frames of all callers, and so to their locals: the loader's workers
    would live until the garbage collector finds the cycle.
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
    """Whether an exception, or its type, survives pickling."""
    kind = what if isinstance(what, type) else type(what)
    if not issubclass(kind, BaseException):
        return False
    try:
        return isinstance(pickle.loads(pickle.dumps(what)), kind if kind is not what else type)
    except Exception:
        return False
