"""ShuffledSampler: random orders of a dataset, by position; and one rank's part of them."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import DistributedSampler, RandomSampler

from stateful_gpu_loader.randomness.permutation import permuted, unpermuted
from stateful_gpu_loader.randomness.philox import Stream, below, words_of_64
from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.samplers.blocks import BlockOrder, Blocks
from stateful_gpu_loader.samplers.orders import (
    EpochOrder,
    PositionOrder,
    SequentialOrder,
    ShuffledOrder,
)
from stateful_gpu_loader.samplers.resumable import OrderSampler, Resumable, settled
from stateful_gpu_loader.state.schema import as_int


@dataclass(frozen=True)
class Rounds:
    """Repeats ``range(length)`` in rounds, each in its own random order.

    It is an EpochOrder with constant memory.

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

    def positions_of(self, index: int) -> IndexArray:
        """Return the positions of an index: one in each whole round."""
        if index >= self.length:
            return np.empty(0, dtype=np.int64)
        rounds = np.arange(-(-self.n // self.length), dtype=np.int64)
        places = unpermuted(
            np.full_like(rounds, index),
            self.length,
            seed=self.seed,
            epoch=self.epoch,
            numbers=rounds,
        )
        positions: IndexArray = rounds * self.length + places
        return positions[positions < self.n]


class RoundsOrder:
    """Orders of all epochs, over a part of the dataset or over several rounds of it.

    Every round contains each index once, so the counts of two indices differ by at most one.
    """

    is_shuffled = True

    def __init__(self, data_source: Sized, num_samples: int) -> None:
        self._data_source = data_source
        self.num_positions = num_samples
        n = len(data_source)
        self.algorithm = f"rounds-1 over {ShuffledOrder.algorithm}, {num_samples} of {n}"

    def of_epoch(self, seed: int, epoch: int) -> EpochOrder:
        return Rounds(self.num_positions, len(self._data_source), seed, epoch)


@dataclass(frozen=True)
class UniformDraws:
    """Uniform draws from ``range(length)``, as an EpochOrder with constant memory.

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
    """Orders of all epochs, drawn with replacement.

    Args:
        data_source: the dataset.
        num_samples: number of draws in an epoch; None is the dataset's length.
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


class ShuffledSampler(OrderSampler, RandomSampler):
    """Yields the whole dataset in random order; its state is a position.

    The arguments are those of ``torch.utils.data.RandomSampler``. An index is computed in constant
    time at any position.

    Args:
        data_source: anything with a length from 1 to 2**63 - 1.
        replacement: whether to draw each sample from the whole dataset.
        num_samples: number of samples in an epoch; None is the dataset's length. Without
            replacement, the dataset is repeated beyond that in another order.
        generator: used in place of a seed; a copy draws the seed, so it does not advance.
        seed: seed of the order; None takes the loader's seed, or 0.
        locality: blocks in which the dataset is stored, for an order that reads it nearly
            sequentially; see :class:`~stateful_gpu_loader.samplers.blocks.BlockOrder`.

    Raises:
        ValueError: ``num_samples`` is not a positive int, the blocks do not make up the dataset, or
            two arguments contradict each other.
        TypeError: ``replacement`` is not a bool, or ``locality`` is not a Blocks.

    The order is that of :class:`stateful_gpu_loader.randomness.permutation.Permutation`.

    >>> sampler = ShuffledSampler(range(6), seed=1)
    >>> first = iter(sampler)
    >>> seen = [next(first), next(first)]
    >>> resumed = ShuffledSampler(range(6), seed=1)
    >>> resumed.load_state_dict(sampler.state_dict())
    >>> sorted(seen + list(resumed))
    [0, 1, 2, 3, 4, 5]
    >>> list(ShuffledSampler(range(9), seed=1, locality=Blocks(3, window=2)))
    [7, 4, 6, 8, 3, 5, 1, 2, 0]
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        *,
        seed: int | None = None,
        locality: Blocks | None = None,
    ) -> None:
        count = None if num_samples is None else as_int("num_samples", num_samples)
        super().__init__(data_source, replacement, count, generator)
        self.seed = settled(seed, generator)
        self.epoch = 0
        self.locality = locality
        self.order: PositionOrder
        if locality is not None:
            if not isinstance(locality, Blocks):
                raise TypeError(
                    f"locality={locality!r} describes no blocks. Remedy: pass "
                    "Blocks(lengths, window=...) or Blocks.of(source, window=...)"
                )
            if replacement or num_samples is not None:
                raise ValueError(
                    f"{locality = } goes through each block once, which {replacement = } and "
                    f"{num_samples = } do not. Remedy: leave them out, or locality"
                )
            self.order = BlockOrder(data_source, locality)
        elif replacement:
            self.order = ReplacementOrder(data_source, count)
        elif count is not None:
            self.order = RoundsOrder(data_source, count)
        else:
            self.order = ShuffledOrder(data_source)


class DistributedShuffledSampler(Resumable, DistributedSampler):  # type: ignore[type-arg]
    """Yields one rank's part of an order that all ranks share.

    Rank r of R yields positions r, r + R, r + 2R, ... The tail wraps around to the epoch's start,
    or is dropped. The arguments are those of ``torch.utils.data.DistributedSampler``. If
    ``num_replicas`` and ``rank`` are None, they are read from ``torch.distributed``.

    >>> ranks = [DistributedShuffledSampler(range(6), 2, rank, seed=3) for rank in (0, 1)]
    >>> sorted(ranks[0]) != sorted(ranks[1])
    True
    >>> sorted([*ranks[0], *ranks[1]])
    [0, 1, 2, 3, 4, 5]
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int | None = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(
            dataset,  # type: ignore[arg-type]
            num_replicas=num_replicas,
            rank=rank,
            shuffle=shuffle,
            seed=0,
            drop_last=drop_last,
        )
        self.seed = seed
        self.order: PositionOrder = ShuffledOrder(dataset) if shuffle else SequentialOrder(dataset)

    def set_ranks(self, num_replicas: int, rank: int) -> None:
        """Change the number of ranks and the rank whose part is yielded."""
        whole, rest = divmod(self.order.num_positions, num_replicas)
        self.num_replicas, self.rank = num_replicas, rank
        self.num_samples = whole + (1 if rest and not self.drop_last else 0)
        self.total_size = self.num_samples * num_replicas

    def __iter__(self) -> Iterator[int]:
        indices = self.order.of_epoch(self.seed or 0, self.epoch)
        for block in self.ordinals(self.num_samples):
            ordinals = np.arange(block.start, block.stop, dtype=np.int64)
            positions = (self.rank + ordinals * self.num_replicas) % indices.n
            for index in indices(positions).tolist():
                self._position += 1
                yield index
