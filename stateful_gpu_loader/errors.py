"""The exceptions of this package, as a tree.

```
LoaderError
├── StateMismatch      (ValueError)    a state does not fit the loader, or is not a state
├── CheckpointError    (ValueError)    a checkpoint is damaged, does not fit, or cannot be written
│   └── CheckpointNotFound (FileNotFoundError)    the checkpoint file does not exist
├── NoSuchPlace        (ValueError)    a place in a stream does not exist, or cannot be computed
├── BadSample          (ValueError)    the data of one sample is corrupt
├── UnsupportedTransform (TypeError)   parts of a transform have no equivalent recipe
├── UnsupportedLoader  (TypeError)     parts of a DataLoader have no faster equivalent
├── WorkerLost         (RuntimeError)  a worker could not start, or died too often
└── MissingDependency  (ImportError)   an optional package is not installed
```
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple


class LoaderError(Exception):
    """Base class of this package's exceptions."""


class StateMismatch(LoaderError, ValueError):
    """A state does not fit the object that it is loaded into; nothing was changed.

    Args:
        field: name of the field that differs, as in ``accept=`` and the fingerprint.
        saved: value in the state.
        present: value of the object that the state is loaded into, or the expected value.
        remedy: what to do.

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
    """A place in a stream does not exist, or only iterating up to it can reach it."""


class CheckpointError(LoaderError, ValueError):
    """A checkpoint is truncated, altered, foreign, of a later version, or does not fit."""


class CheckpointNotFound(CheckpointError, FileNotFoundError):
    """No checkpoint file has this path or matches this pattern."""


_SKIP = (
    'or pass on_bad_sample="replace" (another sample takes its place) or, for any kind of dataset, '
    'on_bad_sample="drop" (it is left out)'
)


class BadSample(LoaderError, ValueError):
    """The data of one sample is corrupt; the loader can continue.

    Args:
        name: where the sample is stored: a path, or a file and a record.
        index: index of the sample in the dataset.
        position: position of the sample in the epoch's global order.
        epoch: epoch in which the sample was read.
        reason: what is wrong with the sample.
    """

    def __init__(self, name: str, *, index: int, position: int, epoch: int, reason: str) -> None:
        self.name = name
        self.index = index
        self.position = position
        self.epoch = epoch
        self.reason = reason
        remedy = "" if "Remedy: " in reason else ". Remedy: repair or remove it"
        if "on_bad_sample" not in reason:
            remedy += f", {_SKIP}"
        super().__init__(
            f"bad sample {name!r} ({index = }, {position = }, {epoch = }): {reason}{remedy}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        place = {"index": self.index, "position": self.position, "epoch": self.epoch}
        return partial(type(self), self.name, **place, reason=self.reason), ()


class RefusedPart(NamedTuple):
    """A part of a transform or a DataLoader that has no equivalent here."""

    place: str
    """Expression that leads to the part, such as ``"transform.transforms[2]"``."""
    transform: Any
    """The part itself."""
    reason: str
    """Why the part has no equivalent."""


class _UnsupportedParts(LoaderError, TypeError):
    """Base of exceptions that name each refused part.

    Args:
        refused: each part without an equivalent.
    """

    _message: str
    """Message with a place, ``{}``, for the refused parts."""

    def __init__(self, refused: Sequence[RefusedPart]) -> None:
        self.refused = list(refused)
        super().__init__(self._message.replace("{}", _listed(self.refused)))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.refused,)


class UnsupportedTransform(_UnsupportedParts):
    """Parts of a transform have no equivalent recipe; nothing was converted.

    Args:
        refused: each part without a recipe, in the order of the transform's calls.
    """

    _message = (
        "no recipe equals {}. Remedy: leave out these parts, or keep the transform in the "
        "dataset: a loader runs it in worker processes, and resumes as exactly"
    )


class UnsupportedLoader(_UnsupportedParts):
    """Parts of a DataLoader have no faster equivalent; no loader was built.

    Args:
        refused: each part without an equivalent.
    """

    _message = (
        "no faster loader equals one with {}. Remedy: pass dataset= or transform= in its place, or "
        "build StatefulGPULoader with the arguments of the DataLoader, which resumes as exactly"
    )


class WorkerLost(LoaderError, RuntimeError):
    """A worker could not start, or one batch lost more workers than ``max_worker_restarts``."""


class MissingDependency(LoaderError, ImportError):
    """An optional package is needed but not installed.

    Args:
        package: name of the package on PyPI.
        needed_for: feature that needs the package.
        extra: this project's extra that installs the package.
        remedy: what to do if no extra installs it.
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
        # A damaged state may hold a value without a repr: endless nesting, a huge int.
        return f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def _listed(refused: Sequence[RefusedPart]) -> str:
    return "; ".join(
        f"{part.place}: {_package_of(part.transform)}{_brief(part.transform)}, because "
        f"{part.reason}"
        for part in refused
    )


def _package_of(thing: Any) -> str:
    """Return the package of a torchvision or timm transform, with a dot; "" for others."""
    module = type(thing).__module__
    for package in ("torchvision.transforms.v2", "torchvision.transforms", "timm.data"):
        if module.startswith(f"{package}."):
            return f"{package}."
    return ""
