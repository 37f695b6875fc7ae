"""Where shards lie, and how their epochs are cut, as DALI's readers and its iterator do it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class LastBatchPolicy(Enum):
    """What becomes of an epoch's last batch, under the names of DALI's iterator."""

    FILL = "fill"
    """It is filled with what comes next, or with repetitions of the last sample."""
    DROP = "drop"
    """It is dropped unless the epoch fills it."""
    PARTIAL = "partial"
    """It is as short as the epoch leaves it."""


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """The arguments of a :class:`ShardSampler`, which are those of DALI's readers."""

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
                f"random_shuffle={self.random_shuffle}: it shuffles the whole dataset and keeps "
                "the shard by itself. Remedy: leave the other two out, as with DALI"
            )

    @property
    def stays(self) -> bool:
        """Whether every epoch is of the same shard."""
        return self.stick_to_shard or self.shuffle_after_epoch

    def start(self, shard: int, n: int) -> int:
        """The first of n samples that lies in a shard: DALI's ``floor(shard * n / num_shards)``."""
        return shard * n // self.num_shards

    def consumed(self, epoch: int, n: int) -> int:
        """Samples that the reader has given to all epochs before this one, padding included.

        DALI cuts a reader's endless stream into epochs; what an epoch takes and does not
        deliver is lost to the next one. Under FILL without padding, epoch e ends with the first
        batch that takes every shard to its end for the (e + 1)th time, but has one batch at
        least: in DALI's counting per shard, that is the closed form here.
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
        """Samples of one epoch."""
        if self.last_batch_policy is LastBatchPolicy.DROP:
            return n // self.num_shards // self.batch_size * self.batch_size
        if self.last_batch_policy is LastBatchPolicy.PARTIAL:
            shard = self.shard_id if self.stays else (self.shard_id + epoch) % self.num_shards
            return self.start(shard + 1, n) - self.start(shard, n)
        return self.consumed(epoch + 1, n) - self.consumed(epoch, n)

    def most_delivered(self, n: int) -> int:
        """Samples of the longest epoch."""
        size = -(-n // self.num_shards)
        if self.last_batch_policy is LastBatchPolicy.FILL:
            return least_multiple(size, self.batch_size)
        return size if self.last_batch_policy is LastBatchPolicy.PARTIAL else self.delivered(0, n)


def least_multiple(count: int, of: int) -> int:
    """The least multiple of ``of`` that is not below ``count``."""
    return -(-count // of) * of
