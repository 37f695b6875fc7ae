"""Map-style datasets of known cost: nothing, or a fixed amount of computing."""

from __future__ import annotations

import statistics
import time

from torch.utils.data import Dataset


class Numbers(Dataset[int]):
    """The numbers from 0 to n - 1; costs nothing for any n."""

    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> int:
        return index


class BusyNumbers(Numbers):
    """The same numbers after a fixed amount of computing, which occupies a core like decoding."""

    def __init__(self, n: int, turns: int) -> None:
        super().__init__(n)
        self._turns = turns

    def __getitem__(self, index: int) -> int:
        compute(self._turns)
        return index


def compute(turns: int) -> int:
    """Run a Python loop of the given length."""
    value = 1
    for _ in range(turns):
        value = (value * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFF
    return value


def turns_of(seconds: float) -> int:
    """Return how many turns of :func:`compute` take this time, by the median of several tries."""
    turns, tries = 20_000, []
    for _ in range(15):
        started = time.perf_counter()
        compute(turns)
        tries.append(time.perf_counter() - started)
    return max(1, round(turns * seconds / statistics.median(tries)))
