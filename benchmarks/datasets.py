"""Map-style datasets whose cost is known: nothing at all, or a fixed amount of computing."""

from __future__ import annotations

import statistics
import time

from torch.utils.data import Dataset


class Numbers(Dataset[int]):
    """The numbers from 0 to n - 1; costs nothing, whatever n is."""

    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> int:
        return index


class BusyNumbers(Numbers):
    """The same after a fixed amount of computing, which keeps a core busy as decoding does."""

    def __init__(self, n: int, turns: int) -> None:
        super().__init__(n)
        self._turns = turns

    def __getitem__(self, index: int) -> int:
        compute(self._turns)
        return index


def compute(turns: int) -> int:
    """A loop in Python, of the same length at every call."""
    value = 1
    for _ in range(turns):
        value = (value * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFF
    return value


def turns_of(seconds: float) -> int:
    """How many turns of :func:`compute` take so long here, from the median of several tries."""
    turns, tries = 20_000, []
    for _ in range(15):
        started = time.perf_counter()
        compute(turns)
        tries.append(time.perf_counter() - started)
    return max(1, round(turns * seconds / statistics.median(tries)))
