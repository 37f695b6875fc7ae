"""RoundsOrder: as many samples as are asked for, from one permutation after the other."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.samplers.orders import EpochOrder, ShuffledOrder
from stateful_gpu_loader.samplers.permutations import permuted


@dataclass(frozen=True)
class Rounds:
    """Round after round over ``range(length)``, each in a keyed order of its own.

    An EpochOrder of constant memory.

    >>> import numpy as np
    >>> rounds = Rounds(8, length=3, seed=2, epoch=0)
    >>> rounds(np.arange(8)).tolist()
    [1, 2, 0, 2, 1, 0, 1, 2]
    """

    n: int
    length: int
    seed: int
    epoch: int

    def __call__(self, positions: IndexArray) -> IndexArray:
        places = positions.reshape(-1)
        indices = permuted(
            places % self.length,
            self.length,
            seed=self.seed,
            epoch=self.epoch,
            numbers=places // self.length,
        )
        return indices.reshape(positions.shape)


class RoundsOrder:
    """The orders of all epochs: of a part of the dataset, or of it several times over.

    Every round holds each index once, so no two counts differ by more than one.
    """

    is_shuffled = True

    def __init__(self, data_source: Sized, num_samples: int) -> None:
        self._data_source = data_source
        self.num_positions = num_samples
        n = len(data_source)
        self.algorithm = f"rounds-1 over {ShuffledOrder.algorithm}, {num_samples} of {n}"

    def of_epoch(self, seed: int, epoch: int) -> EpochOrder:
        return Rounds(self.num_positions, len(self._data_source), seed, epoch)
