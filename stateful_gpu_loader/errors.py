"""The exceptions of this package, as a tree.

LoaderError
├── StateMismatch      (ValueError)    a state does not fit this loader, or is no state at all
├── CheckpointError    (ValueError)    a checkpoint is damaged, does not fit, or cannot be written
│   └── CheckpointNotFound (FileNotFoundError)    there is no such file
├── NoSuchPlace        (ValueError)    a place in a stream does not exist, or cannot be computed
├── BadSample          (ValueError)    the bytes of one sample are not what they should be
├── WorkerLost         (RuntimeError)  a worker could not start, or died too often
└── MissingDependency  (ImportError)   an optional package is not installed
"""

from __future__ import annotations

from functools import partial
from typing import Any


class LoaderError(Exception):
    """Base class of all exceptions that this package raises on purpose."""


class StateMismatch(LoaderError, ValueError):
    """A state does not fit the object that it is loaded into; nothing was changed.

    Args:
        field: the field that differs, as ``accept=`` and the fingerprint name it.
        saved: the value in the state.
        present: the value of the object that the state is loaded into, or what is expected.
        remedy: what to do about it.

    >>> raise StateMismatch("drop_last", saved=True, present=False, remedy="pass drop_last=True")
    Traceback (most recent call last):
        ...
    stateful_gpu_loader.errors.StateMismatch: drop_last differs: the state has True, expected was \
False. Remedy: pass drop_last=True
    """

    def __init__(self, field: str, *, saved: Any, present: Any, remedy: str) -> None:
        self.field = field
        self.saved = saved
        self.present = present
        self.remedy = remedy
        super().__init__(
            f"{field} differs: the state has {_brief(saved)}, expected was {_brief(present)}. "
            f"Remedy: {remedy}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {"saved": self.saved, "present": self.present, "remedy": self.remedy}
        return partial(type(self), self.field, **fields), ()


class NoSuchPlace(LoaderError, ValueError):
    """A place in a stream does not exist, or only iterating up to it would tell what it is."""


class CheckpointError(LoaderError, ValueError):
    """A checkpoint is truncated, altered, foreign, of a later version, or does not fit."""


class CheckpointNotFound(CheckpointError, FileNotFoundError):
    """There is no checkpoint file with this path or pattern."""


class BadSample(LoaderError, ValueError):
    """The bytes of one sample cannot be used; the loader can go on.

    Args:
        name: where the sample is stored: a path, or a file and a record.
        index: index of the sample in the dataset.
        position: position of the sample in the epoch's global order.
        epoch: epoch in which it was read.
        reason: what is wrong with it.
    """

    def __init__(self, name: str, *, index: int, position: int, epoch: int, reason: str) -> None:
        self.name = name
        self.index = index
        self.position = position
        self.epoch = epoch
        self.reason = reason
        super().__init__(
            f"bad sample {name!r} ({index = }, {position = }, {epoch = }): {reason}"
            + ("" if "Remedy: " in reason else ". Remedy: repair or remove it")
        )

    def __reduce__(self) -> tuple[Any, ...]:
        place = {"index": self.index, "position": self.position, "epoch": self.epoch}
        return partial(type(self), self.name, **place, reason=self.reason), ()


class WorkerLost(LoaderError, RuntimeError):
    """Workers died more often than ``max_worker_restarts`` allows, or before they were ready."""


class MissingDependency(LoaderError, ImportError):
    """An optional package is needed but not installed.

    Args:
        package: name of the package on PyPI.
        needed_for: the feature that needs it.
        extra: this package's extra that installs it.
        remedy: what to do instead if no extra installs it.
    """

    def __init__(
        self, package: str, *, needed_for: str, extra: str = "", remedy: str | None = None
    ) -> None:
        self.package = package
        self.needed_for = needed_for
        self.extra = extra
        self.remedy = remedy or f"pip install 'stateful_gpu_loader[{extra}]'"
        super().__init__(
            f"{needed_for} needs the package {package!r}, which is not installed. "
            f"Remedy: {self.remedy}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {"needed_for": self.needed_for, "extra": self.extra, "remedy": self.remedy}
        return partial(type(self), self.package, **fields), ()


def _brief(value: Any, limit: int = 300) -> str:
    try:
        text = repr(value)
    except Exception as error:
        # A damaged state may hold what has no text: nesting without end, an int of a megabyte.
        return f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"
