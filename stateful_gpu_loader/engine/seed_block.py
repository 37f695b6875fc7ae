"""Computes sample seeds for blocks of neighbouring positions: a call costs as much as 300 seeds."""

from __future__ import annotations

import numpy as np

from stateful_gpu_loader.randomness.philox import Stream, sample_seeds
from stateful_gpu_loader.records import IndexArray

_SEEDS = 1024


class SeedBlock:
    """Caches the 64-bit sample seeds of one random stream, block by block.

    >>> seeds = SeedBlock(Stream.SAMPLER)
    >>> [seeds.at(1, 0, 5)] == sample_seeds(1, 0, np.array([5]), Stream.SAMPLER)
    True
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._key: tuple[int, int, int] | None = None
        self._seeds: list[int] = []

    def at(self, seed: int, epoch: int, position: int) -> int:
        """Return the seed of one position."""
        number, offset = divmod(position, _SEEDS)
        key = (seed, epoch, number)
        if key != self._key:
            positions = number * _SEEDS + np.arange(_SEEDS, dtype=np.int64)
            self._seeds = sample_seeds(seed, epoch, positions, self._stream)
            self._key = key
        return self._seeds[offset]

    def of(self, seed: int, epoch: int, positions: IndexArray) -> list[int]:
        """Return one seed for each of the positions, int64 [n]."""
        return [self.at(seed, epoch, position) for position in positions.tolist()]
