"""Exceptions as text: type, message and notes arrive."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

import pytest

from stateful_gpu_loader.engine.pipeline import RemoteFailure, as_text, without_frames
from stateful_gpu_loader.errors import BadSample, LoaderError


class Demanding(Exception):
    """Cannot be built from a single text."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(one, other)


class WithMessage(Exception):
    """Has a field that torch's DataLoader fills, too."""

    message = "default"

    def __init__(self, *, message: str) -> None:
        self.message = message
        super().__init__(message)

    def __reduce__(self) -> Any:
        return Demanding, (1, 2)


class OwnDemanding(LoaderError):
    """A user's subclass of this package's error, which does not survive pickling."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(one)


def remote(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        failure = RemoteFailure(caught, "in a test")
    rebuilt: RemoteFailure = pickle.loads(pickle.dumps(failure))
    return rebuilt.rebuild()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("seven"), ValueError),
        (KeyError("seven"), KeyError),
        (Demanding("seven", 2), RuntimeError),  # type: ignore[arg-type]
        (WithMessage(message="seven"), WithMessage),
        (OwnDemanding("seven", 2), RuntimeError),  # type: ignore[arg-type]
    ],
)
def test_the_type_and_the_traceback_arrive(error: Exception, kind: type[Exception]) -> None:
    found = remote(error)
    assert type(found) is kind
    text = str(found)
    assert text.startswith(f"Caught {type(error).__name__} in a test.\nOriginal Traceback")
    assert "raise error" in text
    assert "seven" in text


def test_a_local_type_becomes_its_nearest_base() -> None:
    class Mixin:
        pass

    class Local(Mixin, LookupError):
        pass

    found = remote(Local("seven"))
    assert type(found) is LookupError
    assert str(found).startswith("Caught Local in a test.")


def test_an_error_of_this_package_travels_whole() -> None:
    found = remote(BadSample("a.jpg", index=1, position=2, epoch=3, reason="truncated"))
    assert isinstance(found, BadSample)
    assert (found.name, found.index, found.position) == ("a.jpg", 1, 2)
    assert "Caught BadSample in a test." in str(found.__cause__)


def test_notes_arrive_even_where_python_does_not_print_them(monkeypatch: Any) -> None:
    """Python 3.10 does not know notes."""
    error: Any = ValueError("seven")
    error.__notes__ = ["in dataset index 3"]
    assert as_text(error).count("in dataset index 3") == 1
    monkeypatch.setattr(traceback, "format_exception", lambda *_: ["ValueError: seven\n"])
    assert as_text(error) == "ValueError: seven\nin dataset index 3\n"


def test_without_frames_the_traceback_is_a_note() -> None:
    try:
        raise ValueError("seven")
    except ValueError as error:
        kept: Any = without_frames(error)
    assert kept.__traceback__ is None
    assert not hasattr(kept, "add_note") or 'raise ValueError("seven")' in kept.__notes__[0]
