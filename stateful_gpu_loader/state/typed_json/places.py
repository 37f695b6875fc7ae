"""Where in a nested value something does not fit; found by unwinding, free while all fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

_Inner = TypeVar("_Inner")


class Misfit(Exception):
    """What is wrong, and the keys that lead there, the innermost first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.keys: list[Any] = []

    def place(self) -> str:
        """The place as Python would write it.

        >>> misfit = Misfit("no number")
        >>> misfit.keys = [3, "a"]
        >>> misfit.place()
        "state['a'][3]"
        """
        return "state" + "".join(f"[{brief(key)}]" for key in reversed(self.keys))


def each(
    act: Callable[[Any, _Inner], Any],
    values: Iterable[Any],
    inner: _Inner,
    keys: Iterable[Any] | None = None,
) -> list[Any]:
    """What ``act(value, inner)`` returns for all values.

    Args:
        act: raises :class:`Misfit`, which learns the key of its value.
        values: the values.
        inner: the second argument for all of them.
        keys: of the values; None if they are numbered.

    >>> each(lambda value, inner: value + inner, [1, 2], 10)
    [11, 12]
    """
    done: list[Any] = []
    try:
        for value in values:
            done.append(act(value, inner))
    except Misfit as misfit:
        misfit.keys.append(len(done) if keys is None else list(keys)[len(done)])
        raise
    return done


def checked(act: Callable[[Any], Any], value: Any) -> Any:
    """``act(value)``, whose TypeError or ValueError becomes a misfit."""
    try:
        return act(value)
    except (TypeError, ValueError) as error:
        raise Misfit(str(error)) from error


def brief(value: Any) -> str:
    """At most some 80 characters of it.

    >>> len(brief("x" * 1000))
    83
    """
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
