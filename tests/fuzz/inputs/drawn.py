"""An input: the example it begins with, the changes to it, and the outcome of reading it."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import stateful_gpu_loader
from tests.fuzz.inputs.kind import Broken, Kind

_MOST_STEPS = 6
_LONGEST_MESSAGE = 20_000
_PACKAGE = Path(stateful_gpu_loader.__file__).parent


@dataclass(frozen=True)
class Input:
    """An input, defined by these few numbers."""

    example: int
    steps: tuple[int, ...]
    """The seed of each change."""

    @classmethod
    def of(cls, kind: Kind, seed: int, number: int) -> Input:
        """Return the input with a number; one in fifty is an unchanged example."""
        random = Random(f"{seed}/{kind.name}/{number}")
        example = random.randrange(len(kind.examples))
        count = 0
        if random.random() >= 0.02:
            count = 1
            while count < _MOST_STEPS and random.random() < 0.4:
                count += 1
        return cls(example, tuple(random.getrandbits(64) for _ in range(count)))

    def content(self, kind: Kind) -> Any:
        content = kind.examples[self.example]
        for step in self.steps:
            content = kind.change(Random(step), content)
        return content

    def shorter(self) -> Iterator[Input]:
        """Yield the input with one change less."""
        for i in range(len(self.steps)):
            yield replace(self, steps=self.steps[:i] + self.steps[i + 1 :])


@dataclass(frozen=True)
class Outcome:
    """Outcome of reading an input."""

    is_refused: bool = False
    fault: str | None = None
    """The fault in one line, equal for equal faults; None if there is none."""
    details: str = ""
    """The traceback."""


def outcome_of(kind: Kind, content: Any, example: int, *, is_changed: bool = True) -> Outcome:
    """Read a content, and judge the outcome."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for category in kind.warns:
            warnings.simplefilter("ignore", category)
        try:
            kind.read(content, example)
        except Exception as error:
            return _judged(kind, error, is_changed=is_changed)
    return Outcome()


def _judged(kind: Kind, error: Exception, *, is_changed: bool) -> Outcome:
    fault = _fault_of(kind, error, is_changed=is_changed)
    if fault is None:
        return Outcome(is_refused=True)
    details = "".join(traceback.format_exception(error, limit=-12))[-6000:]
    return Outcome(fault=f"{type(error).__name__} {fault}, at {_place(error)}", details=details)


def _fault_of(kind: Kind, error: Exception, *, is_changed: bool) -> str | None:
    """Return the fault of an error, or None."""
    if type(error) is Broken:
        return str(error)
    if type(error) not in kind.refusals:
        return "is no refusal of this kind"
    if not is_changed:
        return "refuses a valid example"
    try:
        text = str(error)
        text.encode()
    except Exception as inner:
        return f"has a text that raises {type(inner).__name__}"
    if len(text) > _LONGEST_MESSAGE:
        return "has a text that nobody reads to its end"
    if kind.names_remedy and "Remedy: " not in text:
        return "names no remedy"
    return None if text else "says nothing"


def _place(error: Exception) -> str:
    """Return the innermost line of the package, or of the kind, in the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _PACKAGE in Path(frame.filename).parents]
    last = (own or frames)[-1]
    place = Path(last.filename).relative_to(_PACKAGE) if own else Path(last.filename).name
    return f"{place}:{last.lineno}"


def is_the_packages(error: BaseException) -> bool:
    """Return whether code of the package raised it, and not a library or the tests."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return _PACKAGE in Path(last.filename).parents
