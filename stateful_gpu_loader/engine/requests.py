"""From an address to the requests of the rest of its epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stateful_gpu_loader.passes import Address
from stateful_gpu_loader.records import IndexArray, Request
from stateful_gpu_loader.samplers import PositionOrder

_LARGEST_BLOCK = 8192


@dataclass(frozen=True, kw_only=True)
class Division:
    """How an epoch is divided into steps, and a step among ranks."""

    batch_size: int
    """Samples of one rank in one step."""
    drop_last: bool
    """Whether a step that not all ranks could fill is left out."""
    rank: int = 0
    num_replicas: int = 1

    @property
    def global_batch_size(self) -> int:
        """Samples of all ranks in one step."""
        return self.batch_size * self.num_replicas

    def num_steps(self, num_positions: int) -> int:
        """Steps over so many positions.

        >>> Division(batch_size=4, drop_last=False, num_replicas=2).num_steps(17)
        3
        """
        whole, rest = divmod(num_positions, self.global_batch_size)
        return whole + (1 if rest and not self.drop_last else 0)


def requests_from(
    address: Address, *, seed: int, order: PositionOrder, division: Division
) -> Iterator[Request]:
    """One rank's requests from ``address`` to the end of the epoch.

    At every step the ranks together take the next ``global_batch_size`` positions, rank r of R
    those at offsets r, r + R, ... So the global batch depends on the global batch size alone
    (B3). The last step wraps to the epoch's start so that all ranks deliver as many samples,
    as DistributedSampler pads. After the last step the position is the epoch's end, whether
    or not a tail was dropped.
    """
    num_positions, stride = order.num_positions, division.num_replicas
    num_steps = division.num_steps(num_positions - address.position)
    indices = _IndexBlocks(order, seed, address.epoch, address.position + division.rank, stride)
    start = address.position
    for ordinal in range(num_steps):
        left = num_positions - start
        count = min(division.batch_size, -(-left // stride))
        is_last = ordinal == num_steps - 1
        end = num_positions if is_last else start + division.global_batch_size
        yield Request(
            ordinal=ordinal,
            seed=seed,
            epoch=address.epoch,
            start=start + division.rank,
            step=stride,
            indices=indices.take(count),
            end=end,
        )
        start = end


class _IndexBlocks:
    """Looks indices up in blocks that grow: a first batch at once, then few large calls."""

    def __init__(
        self, order: PositionOrder, seed: int, epoch: int, position: int, stride: int
    ) -> None:
        self._order = order
        self._seed, self._epoch = seed, epoch
        self._position, self._stride = position, stride
        self._indices: IndexArray = np.empty(0, dtype=np.int64)
        self._size = 0

    def take(self, count: int) -> IndexArray:
        if len(self._indices) < count:
            self._size = max(count, min(4 * self._size, _LARGEST_BLOCK))
            positions = self._position + self._stride * np.arange(self._size, dtype=np.int64)
            positions %= self._order.num_positions
            block = self._order.indices(self._seed, self._epoch, positions)
            self._position += self._stride * self._size
            self._indices = np.concatenate([self._indices, block])
        taken, self._indices = self._indices[:count], self._indices[count:]
        return taken
