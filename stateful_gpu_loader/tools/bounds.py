"""How large a value from a file may become when it is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

MAX_STATE_BYTES = 1 << 30
"""Size of all states in a file, with each value counted as often as it is reached."""
MAX_DEPTH = 100
"""Greatest nesting of a value."""
_CONTAINER, _ITEM = 64, 16
_COUNTLESS = 1 << 62


class Expansion:
    """Adds up the sizes of values as they are when printed, compared or copied.

    A list that holds another twice, which holds a third twice, and so on, takes few bytes in a
    file. Whoever goes through it meets the last one once for each way that leads there.
    """

    def __init__(self) -> None:
        self._total = 0
        self._found: dict[int, tuple[int, int]] = {}
        """Sizes and heights of values with all that they hold, each computed once."""
        self._kept: list[Any] = []
        """Values whose ids are in use."""

    def add(self, value: Any) -> None:
        """Count a value.

        Raises:
            ValueError: all values are larger than :data:`MAX_STATE_BYTES`, or this one is nested
                too deeply or holds itself.
        """
        size, _ = self._of(value, 0)
        self._total += size
        if self._total > MAX_STATE_BYTES:
            raise ValueError(
                "states hold the same values so often that they would take "
                + (f"{size} bytes" if size < _COUNTLESS else "more bytes than any machine has")
                + f"; {MAX_STATE_BYTES} are read"
            )

    def _of(self, value: Any, depth: int) -> tuple[int, int]:
        if isinstance(value, str | bytes | bytearray):
            return len(value), 0
        if isinstance(value, torch.Tensor):
            return value.numel() * value.element_size(), 0
        if not isinstance(value, Mapping | list | tuple | set | frozenset):
            return 0, 0
        size, height = self._found.get(id(value)) or (0, 0)
        if depth + height >= MAX_DEPTH:
            raise ValueError(f"it is nested too deeply (more than {MAX_DEPTH}), or holds itself")
        if size:
            return size, height
        size = _CONTAINER
        inner = [*value, *value.values()] if isinstance(value, Mapping) else value
        for item in inner:
            more, below = self._of(item, depth + 1)
            size, height = min(size + _ITEM + more, _COUNTLESS), max(height, below + 1)
        self._found[id(value)] = size, height
        self._kept.append(value)
        return size, height
