"""TargetChoice: which fields of a record form the target, and in which structure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Target = str | Sequence[str] | Mapping[str, str] | None
"""A field; several for a tuple; new names for fields, for a dict; None for the record's number."""


class TargetChoice:
    """Makes the target of each record from its fields.

    Args:
        target: the user's choice.

    Attributes:
        target: as given, a sequence as a tuple.
        names: names of the needed fields.

    Raises:
        TypeError: ``target`` has a wrong type.

    >>> fields = {"label": 3, "text": b"cat"}
    >>> TargetChoice("label").make(fields.__getitem__, 0)
    3
    >>> TargetChoice(("label", "text")).make(fields.__getitem__, 0)
    (3, b'cat')
    >>> TargetChoice({"y": "label"}).make(fields.__getitem__, 0)
    {'y': 3}
    >>> TargetChoice(None).make(fields.__getitem__, 8)
    8
    """

    names: tuple[str, ...]

    def __init__(self, target: Target) -> None:
        self.target: Any = target
        if isinstance(target, Mapping):
            self.target = dict(target)
            self.names = tuple(target.values())
        elif isinstance(target, Sequence) and not isinstance(target, str):
            self.names = self.target = tuple(target)
        else:
            self.names = () if target is None else (target,)
        if not all(isinstance(name, str) for name in self.names):
            raise TypeError(
                f"{target = } does not name fields. Remedy: pass a name, several, a dict of new "
                "names and names, or None"
            )

    def make(self, value_of: Callable[[str], Any], number: int) -> Any:
        """Return the target of a record.

        Args:
            number: the target if no field is chosen.
        """
        if isinstance(self.target, str):
            return value_of(self.target)
        if isinstance(self.target, tuple):
            return tuple(map(value_of, self.target))
        if isinstance(self.target, dict):
            return {new: value_of(name) for new, name in self.target.items()}
        return number

    def __repr__(self) -> str:
        return repr(self.target)
