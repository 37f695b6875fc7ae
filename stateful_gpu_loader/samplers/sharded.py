"""ShardSampler: one shard of a dataset, divided like DALI's readers and iterator."""

from __future__ import annotations

import operator
from collections.abc import Sized
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from stateful_gpu_loader.randomness.permutation import permuted
from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.samplers.orders import EpochOrder
from stateful_gpu_loader.samplers.resumable import OrderSampler

ALGORITHM = "shards-1"
"""Name and version; the version increases when any index changes."""

_SHARD_BITS = 40


class LastBatchPolicy(Enum):
    """Treatment of an epoch's last batch, with the names of DALI's iterator."""

    FILL = "fill"
    """Fill it with the next samples, or with repetitions of the last sample."""
    DROP = "drop"
    """Drop it unless it is full."""
    PARTIAL = "partial"
    """Deliver it incomplete."""


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """Arguments of a :class:`ShardSampler`, named as in DALI's readers."""

    batch_size: int
    shard_id: int
    num_shards: int
    stick_to_shard: bool
    pad_last_batch: bool
    last_batch_policy: LastBatchPolicy
    random_shuffle: bool
    shuffle_after_epoch: bool

    def __post_init__(self) -> None:
        for name, lowest in (("batch_size", 1), ("num_shards", 1), ("shard_id", 0)):
            value = getattr(self, name)
            if value < lowest:
                raise ValueError(
                    f"{name} = {value} is below {lowest}. Remedy: pass {lowest} or more"
                )
        if self.shard_id >= self.num_shards:
            raise ValueError(
                f"shard_id = {self.shard_id} is not below num_shards = {self.num_shards}. "
                "Remedy: count the shards from 0"
            )
        if not isinstance(self.last_batch_policy, LastBatchPolicy):
            raise TypeError(
                f"last_batch_policy = {self.last_batch_policy!r} is a "
                f"{type(self.last_batch_policy).__name__}. Remedy: pass one of "
                f"{', '.join(map(str, LastBatchPolicy))}, of stateful_gpu_loader.samplers"
            )
        if self.shuffle_after_epoch and (self.stick_to_shard or self.random_shuffle):
            raise ValueError(
                f"shuffle_after_epoch=True with stick_to_shard={self.stick_to_shard} and "
                f"random_shuffle={self.random_shuffle}: it already shuffles the whole dataset and "
                "keeps the shard. Remedy: leave the other two out, as with DALI"
            )

    @property
    def stays(self) -> bool:
        """Whether every epoch reads the same shard."""
        return self.stick_to_shard or self.shuffle_after_epoch

    def start(self, shard: int, n: int) -> int:
        """Return the first of n samples in a shard: DALI's ``floor(shard * n / num_shards)``."""
        return shard * n // self.num_shards

    def consumed(self, epoch: int, n: int) -> int:
        """Return the number of samples that the reader gave before an epoch, including padding.

        DALI divides a reader's endless stream into epochs. Samples that an epoch takes and does not
        deliver are missing in the next epoch. With FILL and no padding, epoch e ends with the first
        batch that takes every shard to its end for the (e + 1)th time, but has at least one batch.
        """
        size, batch_size = -(-n // self.num_shards), self.batch_size
        if self.last_batch_policy is LastBatchPolicy.DROP:
            return epoch * least_multiple(n // self.num_shards, batch_size)
        if self.last_batch_policy is LastBatchPolicy.PARTIAL or self.pad_last_batch:
            return epoch * least_multiple(size, batch_size)
        if size < batch_size or (not self.stays and n < self.num_shards * batch_size):
            return epoch * batch_size
        longest = epoch * size if self.stays else -(-epoch * n // self.num_shards)
        return least_multiple(longest, batch_size)

    def delivered(self, epoch: int, n: int) -> int:
        """Return the number of samples in one epoch."""
        if self.last_batch_policy is LastBatchPolicy.DROP:
            return n // self.num_shards // self.batch_size * self.batch_size
        if self.last_batch_policy is LastBatchPolicy.PARTIAL:
            shard = self.shard_id if self.stays else (self.shard_id + epoch) % self.num_shards
            return self.start(shard + 1, n) - self.start(shard, n)
        return self.consumed(epoch + 1, n) - self.consumed(epoch, n)

    def most_delivered(self, n: int) -> int:
        """Return the number of samples in the longest epoch."""
        size = -(-n // self.num_shards)
        if self.last_batch_policy is LastBatchPolicy.FILL:
            return least_multiple(size, self.batch_size)
        return size if self.last_batch_policy is LastBatchPolicy.PARTIAL else self.delivered(0, n)


def least_multiple(count: int, of: int) -> int:
    """Return the smallest multiple of ``of`` that is not below ``count``."""
    return -(-count // of) * of


class ShardEpoch:
    """One epoch of one shard, as an EpochOrder: a window of the reader's endless stream.

    The stream is a sequence of turns. Each turn reads one shard; the next turn reads the next shard
    (or the same one if it stays). With ``pad_last_batch`` its last sample is repeated until all
    shards have filled equally many batches.
    """

    def __init__(self, sharding: Sharding, n: int, *, seed: int, epoch: int) -> None:
        self.n = sharding.delivered(epoch, n)
        self.key_offset = sharding.shard_id << _SHARD_BITS
        self._sharding, self._num_samples, self._seed = sharding, n, seed
        shards = range(sharding.num_shards + 1)
        self._starts = np.array([sharding.start(shard, n) for shard in shards], dtype=np.int64)
        own, num_shards = sharding.shard_id, sharding.num_shards
        place = sharding.consumed(epoch, n)
        if sharding.pad_last_batch:
            self._period = least_multiple(-(-n // num_shards), sharding.batch_size)
        elif sharding.stays:
            self._period = int(self._starts[own + 1] - self._starts[own])
        else:
            # The turns of all shards, one after the other, are the whole dataset.
            self._period = n
            place += int(self._starts[own])
        # Python's ints, because late epochs of large datasets start beyond int64.
        self._first_period, self._first_offset = divmod(place, self._period)

    def __call__(self, positions: IndexArray) -> IndexArray:
        """Map positions in ``range(n)`` to indices; both int64 [...]."""
        flat = np.asarray(positions, dtype=np.int64).reshape(-1)
        turns, shards, offsets = self._places(flat)
        sharding, first = self._sharding, self._starts[shards]
        if sharding.random_shuffle:
            sizes = self._starts[shards + 1] - first
            numbers = turns * sharding.num_shards + shards
            offsets = permuted(offsets, sizes, seed=self._seed, epoch=0, numbers=numbers)
        indices: IndexArray = first + offsets
        if sharding.shuffle_after_epoch:
            indices = permuted(indices, self._num_samples, seed=self._seed, epoch=0, numbers=turns)
        return indices.reshape(positions.shape)

    def _places(self, positions: IndexArray) -> tuple[IndexArray, IndexArray, IndexArray]:
        """Return the turn, the shard and the offset in it at each position."""
        sharding, starts = self._sharding, self._starts
        own, num_shards = sharding.shard_id, sharding.num_shards
        periods, offsets = np.divmod(self._first_offset + positions, self._period)
        periods += self._first_period
        if not sharding.pad_last_batch and not sharding.stays:
            shards = np.searchsorted(starts, offsets, side="right") - 1
            return periods * num_shards + shards - own, shards, offsets - starts[shards]
        shards = np.full_like(periods, own)
        if not sharding.stays:
            shards = (periods + own) % num_shards
        return periods, shards, np.minimum(offsets, starts[shards + 1] - starts[shards] - 1)


class ShardOrder:
    """Orders of all epochs of a :class:`ShardSampler`.

    >>> order = ShardSampler(range(7), 2, num_shards=2, pad_last_batch=True).order
    >>> [order.of_epoch(0, epoch)(np.arange(4)).tolist() for epoch in range(3)]
    [[0, 1, 2, 2], [3, 4, 5, 6], [0, 1, 2, 2]]
    """

    def __init__(self, data_source: Sized, sharding: Sharding) -> None:
        self._data_source, self._sharding = data_source, sharding
        arguments = (
            f"{name}={value.value if isinstance(value, LastBatchPolicy) else value}"
            for name, value in vars(sharding).items()
        )
        self.algorithm = f"{ALGORITHM}({', '.join(arguments)})"
        self.is_shuffled = sharding.random_shuffle or sharding.shuffle_after_epoch
        self._num_samples()

    @property
    def num_positions(self) -> int:
        """Number of samples in the longest epoch; the lengths of shards differ by at most one."""
        return self._sharding.most_delivered(self._num_samples())

    def of_epoch(self, seed: int, epoch: int) -> EpochOrder:
        """Return the order of one epoch, which has its own length."""
        return ShardEpoch(self._sharding, self._num_samples(), seed=seed, epoch=epoch)

    def _num_samples(self) -> int:
        n, num_shards = len(self._data_source), self._sharding.num_shards
        if n < num_shards:
            raise ValueError(
                f"{n} samples cannot be divided into {num_shards = }: some would be empty. "
                "Remedy: at most as many shards as samples"
            )
        if not self._sharding.most_delivered(n):
            raise ValueError(
                f"LastBatchPolicy.DROP drops everything: {n} samples in {num_shards = } are "
                f"{n // num_shards} a shard, less than batch_size = {self._sharding.batch_size}. "
                "Remedy: a smaller batch_size, fewer shards, or another policy"
            )
        return n


class ShardSampler(OrderSampler, Sampler[int]):
    """Yields one shard of a dataset, epoch by epoch, like DALI's readers.

    Arguments, defaults and meaning are those of ``nvidia.dali.fn.readers`` and of
    ``DALIGenericIterator(reader_name=...)``. Epochs equal DALI 2.4's batch for batch, without the
    empty batch that DALI delivers if PARTIAL leaves no samples. As in DALI without
    ``pad_last_batch``, the samples that DROP and PARTIAL cut off one epoch are missing in the next,
    too. ``pad_last_batch=True`` with PARTIAL yields each shard exactly once. Pass the same batch
    size to the loader. The state is a position in this shard alone.

    Args:
        data_source: anything with a length of at least ``num_shards``.
        batch_size: size of the batches that FILL fills and DROP drops.
        shard_id: number of this shard, counted from 0.
        num_shards: number of shards. Shard i of n samples is
            ``range(i * n // num_shards, (i + 1) * n // num_shards)``.
        stick_to_shard: whether every epoch reads the same shard instead of the next one.
        pad_last_batch: whether the last sample is repeated until all shards have filled equally
            many batches, instead of beginning the next shard.
        last_batch_policy: see :class:`LastBatchPolicy`.
        random_shuffle: whether to shuffle within the shard. Each turn is a random permutation,
            whereas DALI draws from a buffer of ``initial_fill``.
        shuffle_after_epoch: whether to shuffle the whole dataset in each epoch and then divide it,
            always taking the same shard; all shards need the same seed.
        seed: seed of the shuffling; None takes the loader's seed, or 0.

    Raises:
        ValueError: an argument is out of range; two arguments contradict each other, as in DALI;
            there are more shards than samples; or DROP would drop everything.
        TypeError: ``last_batch_policy`` is not a LastBatchPolicy, or a number is not an integer.

    >>> shards = [ShardSampler(range(7), 2, shard_id=i, num_shards=2) for i in range(2)]
    >>> [list(shard) for shard in shards]
    [[0, 1, 2, 3], [3, 4, 5, 6]]
    >>> [list(shard) for shard in shards]
    [[4, 5, 6, 0], [0, 1, 2, 3]]
    """

    order: ShardOrder

    def __init__(
        self,
        data_source: Sized,
        batch_size: int,
        *,
        shard_id: int = 0,
        num_shards: int = 1,
        stick_to_shard: bool = False,
        pad_last_batch: bool = False,
        last_batch_policy: LastBatchPolicy = LastBatchPolicy.FILL,
        random_shuffle: bool = False,
        shuffle_after_epoch: bool = False,
        seed: int | None = None,
    ) -> None:
        arguments: dict[str, Any] = {
            "batch_size": operator.index(batch_size),
            "shard_id": operator.index(shard_id),
            "num_shards": operator.index(num_shards),
            "stick_to_shard": stick_to_shard,
            "pad_last_batch": pad_last_batch,
            "last_batch_policy": last_batch_policy,
            "random_shuffle": random_shuffle,
            "shuffle_after_epoch": shuffle_after_epoch,
        }
        self.order = ShardOrder(data_source, Sharding(**arguments))
        self.seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        """Return the number of samples in the present epoch, or in the next one."""
        return self.order.of_epoch(self.seed or 0, self.epoch).n
