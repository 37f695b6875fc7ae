"""ReplacementOrder: uniform draws with replacement, one for each position."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass

from stateful_gpu_loader.randomness.philox import Stream
from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.samplers.draws import below, words_of_64
from stateful_gpu_loader.samplers.orders import EpochOrder


@dataclass(frozen=True)
class UniformDraws:
    """Draws from ``range(length)``, an EpochOrder of constant memory.

    >>> import numpy as np
    >>> UniformDraws(10**9, length=6, seed=1, epoch=0)(np.array([0, 10**9 - 1])).tolist()
    [0, 1]
    """

    n: int
    length: int
    seed: int
    epoch: int

    def __call__(self, positions: IndexArray) -> IndexArray:
        drawn = words_of_64(self.seed, self.epoch, positions.reshape(-1), Stream.WEIGHTED, 1)
        return below(drawn[:, 0], self.length).reshape(positions.shape)


class ReplacementOrder:
    """The draws of all epochs.

    Args:
        data_source: the dataset.
        num_samples: draws in an epoch; None is the dataset's length.
    """

    is_shuffled = True

    def __init__(self, data_source: Sized, num_samples: int | None) -> None:
        self._data_source = data_source
        self._num_samples = num_samples
        self.algorithm = f"uniform-1 with replacement, of {len(data_source)}"

    @property
    def num_positions(self) -> int:
        return len(self._data_source) if self._num_samples is None else self._num_samples

    def of_epoch(self, seed: int, epoch: int) -> EpochOrder:
        return UniformDraws(self.num_positions, len(self._data_source), seed, epoch)
