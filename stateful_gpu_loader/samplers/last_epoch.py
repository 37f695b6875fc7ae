"""LastEpoch: orders that are costly to begin keep that of the last epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from stateful_gpu_loader.samplers.orders import EpochOrder


class LastEpoch(ABC):
    """The base of position orders that write a table at the start of an epoch.

    The table is made when an epoch is asked for and kept until another one is; it is never
    pickled, so that a worker process gets the order without it. Several threads may ask at once:
    at worst each makes the same table.
    """

    _last: tuple[tuple[int, int, int], EpochOrder] | None = None

    @property
    @abstractmethod
    def num_positions(self) -> int:
        """Samples in an epoch that begins now, all ranks together."""

    @abstractmethod
    def begin(self, seed: int, epoch: int) -> EpochOrder:
        """Make the order of one epoch."""

    def of_epoch(self, seed: int, epoch: int) -> EpochOrder:
        """The order of one epoch, made anew only for another seed, epoch or length."""
        key = seed, epoch, self.num_positions
        last = self._last
        if last is None or last[0] != key:
            last = key, self.begin(seed, epoch)
            self._last = last
        return last[1]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_last"}
