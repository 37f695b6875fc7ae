"""Lanes: how a dataset's shards are dealt, and which lanes each rank reads.

The number of lanes is a constant of the dataset, so the order within a lane does not depend on
workers or ranks, and any worker can continue a lane from its cursor.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stateful_gpu_loader.datasets.sharded import DEFAULT_LANES, ShardedDataset
from stateful_gpu_loader.randomness.permutation import Permutation
from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.state.schema import Stateful, as_int

MOST_SAMPLES = 1 << 40
"""Upper bound of the samples of a lane in an epoch."""

_MOST_LANES = 1 << 22

ALGORITHM = "lanes-1"
"""Name and version of the order, for fingerprints."""


@dataclass(frozen=True)
class EpochLanes:
    """The lanes of one epoch.

    >>> lanes = EpochLanes(("a", "b", "c"), np.array([2, 0, 1]), num_lanes=2)
    >>> lanes.shards_of(0), lanes.shards_of(1)
    (['c', 'b'], ['a'])
    """

    names: Sequence[str]
    """Names of all shards."""
    order: IndexArray
    """int64 [number of shards]: order of the shards in this epoch."""
    num_lanes: int

    def shards_of(self, lane: int) -> list[str]:
        return [self.names[i] for i in self.order[lane :: self.num_lanes].tolist()]


class LanePlan:
    """The plan for reading a sharded dataset.

    Args:
        dataset: the dataset; its ``shards()`` is called once.
        shuffle: whether shards are permuted in each epoch, and samples in windows.

    Raises:
        ValueError: no shards, a repeated name, or ``num_lanes`` or ``shuffle_buffer`` out of range.
        TypeError: the dataset has its own state, or names or numbers of wrong types.
    """

    def __init__(self, dataset: ShardedDataset, *, shuffle: bool) -> None:
        self.dataset = dataset
        self.is_shuffled = shuffle
        if isinstance(dataset, Stateful):
            raise TypeError(
                f"{type(dataset).__name__} has state_dict() and is a ShardedDataset, whose state "
                "is the cursors of its lanes. Remedy: leave state_dict() out, or derive from "
                "IterableDataset"
            )
        self.names = list(dataset.shards())
        if wrong := [name for name in self.names if not isinstance(name, str)]:
            raise TypeError(
                f"{type(dataset).__name__}.shards() gives {wrong[0]!r}. Remedy: name each shard "
                "with a str"
            )
        if not self.names or len(set(self.names)) < len(self.names):
            raise ValueError(
                f"{type(dataset).__name__}.shards() gives {len(self.names)} names, "
                f"{len(set(self.names))} different ones. Remedy: name at least one shard, and each "
                "once"
            )
        given = dataset.num_lanes
        buffer = as_int("shuffle_buffer", dataset.shuffle_buffer)
        self.num_lanes = min(DEFAULT_LANES, len(self.names))
        if given is not None:
            self.num_lanes = as_int("num_lanes", given)
        if not 1 <= self.num_lanes <= _MOST_LANES or buffer < 1:
            raise ValueError(
                f"num_lanes={given} and shuffle_buffer={buffer} of {type(dataset).__name__} are "
                f"out of range. Remedy: set num_lanes to 1 to {_MOST_LANES}, and shuffle_buffer to "
                "1 or more"
            )
        self.window = max(1, buffer // self.num_lanes) if shuffle else 0
        """Number of a lane's samples that are shuffled together; 0 without shuffling."""
        self._num_samples: IndexArray | None = None
        self._asked_num_samples = False

    @property
    def algorithm(self) -> str:
        """Fingerprint text of everything that determines the order besides seed and shards."""
        windows = f", windows of {self.window}" if self.is_shuffled else ""
        # The numbers of samples determine where each rank's epoch ends.
        counts = self.num_samples()
        sizes = (
            "unknown"
            if counts is None
            else hashlib.blake2b(np.array(counts, dtype="<i8").tobytes(), digest_size=8).hexdigest()
        )
        return f"{ALGORITHM}, {self.num_lanes} lanes{windows}, numbers of samples {sizes}"

    @staticmethod
    def num_lanes_of(algorithm: str) -> int | None:
        """Return the number of lanes in :attr:`algorithm`; None for another order.

        >>> LanePlan.num_lanes_of("lanes-1, 12 lanes, numbers of samples unknown")
        12
        """
        found = re.match(rf"{ALGORITHM}, (\d+) lanes\b", algorithm)
        return None if found is None else int(found[1])

    def num_shards(self, lane: int) -> int:
        """Return the number of shards of a lane, the same in every epoch."""
        return len(range(lane, len(self.names), self.num_lanes))

    def of_epoch(self, seed: int, epoch: int) -> EpochLanes:
        order = np.arange(len(self.names), dtype=np.int64)
        if self.is_shuffled:
            order = Permutation(len(order), seed=seed, epoch=epoch)(order)
        return EpochLanes(self.names, order, self.num_lanes)

    def check_ranks(self, num_replicas: int) -> None:
        """Check that all ranks have the same number of lanes.

        Raises:
            ValueError: the number of lanes is not a multiple of ``num_replicas``.
        """
        if self.num_lanes % num_replicas:
            fitting = [n for n in range(1, self.num_lanes + 1) if self.num_lanes % n == 0]
            numbers = ", ".join(map(str, fitting[:20])) + (", ..." if len(fitting) > 20 else "")
            raise ValueError(
                f"{num_replicas} ranks cannot share the {self.num_lanes} lanes of "
                f"{type(self.dataset).__name__} evenly. Remedy: use {numbers} ranks, or set its "
                f"num_lanes to a multiple of {num_replicas} in a new run"
            )

    def num_samples(self) -> IndexArray | None:
        """Return int64 [number of shards]: samples of each shard; None unless all are known.

        Raises:
            ValueError: the dataset returns a negative number.
        """
        if not self._asked_num_samples:
            self._num_samples = self._ask_num_samples()
            self._asked_num_samples = True
        return self._num_samples

    def num_steps(
        self,
        seed: int,
        epoch: int,
        division: LaneDivision,
        counts: Mapping[int, int] | None = None,
    ) -> int | None:
        """Return the number of batches that every rank delivers in the rest of the epoch.

        The largest rank determines it.

        Args:
            counts: number of samples that each lane has delivered already; None at the beginning.

        Returns:
            The number of batches; None if the numbers of samples are unknown.
        """
        lanes = self._samples_of_lanes(seed, epoch)
        if lanes is None:
            return None
        for lane, count in (counts or {}).items():
            lanes[lane] = max(0, lanes[lane] - count)
        return max(division.num_batches(number) for number in division.of_ranks(lanes))

    def check_shares(self, seed: int, epoch: int, division: LaneDivision) -> None:
        """Check that no rank is without a batch in an epoch in which another rank has one.

        Every rank raises the same error, so no rank waits.

        Raises:
            ValueError: a rank has no batch.
        """
        lanes = self._samples_of_lanes(seed, epoch)
        if lanes is None:
            return
        samples = division.of_ranks(lanes)
        poorest = samples.index(min(samples))
        if division.num_batches(max(samples)) and not division.num_batches(samples[poorest]):
            raise ValueError(
                f"rank {poorest} of {division.num_replicas} has {samples[poorest]} samples in its "
                f"lanes in epoch {epoch}, no batch of {division.batch_size}"
                f"{' (drop_last)' if division.drop_last else ''}, and another rank has "
                f"{max(samples)}. Remedy: make shards of about one size and more of them, or use "
                "fewer ranks"
            )

    def _ask_num_samples(self) -> IndexArray | None:
        counts = []
        for name in self.names:
            given = self.dataset.num_samples(name)
            if given is None:
                return None
            counts.append(as_int(f"num_samples({name!r})", given))
            if counts[-1] < 0:
                raise ValueError(
                    f"{type(self.dataset).__name__}.num_samples({name!r}) is {given}. Remedy: "
                    "count from 0, or return None where it is not known"
                )
        return np.array(counts, dtype=np.int64)

    def _samples_of_lanes(self, seed: int, epoch: int) -> IndexArray | None:
        """Return int64 [num_lanes]: samples of each lane in one epoch."""
        samples = self.num_samples()
        if samples is None:
            return None
        order = self.of_epoch(seed, epoch).order
        lanes = np.zeros(self.num_lanes, dtype=np.int64)
        np.add.at(lanes, np.arange(len(order)) % self.num_lanes, samples[order])
        return lanes


def key_of_lane(lane: int, ordinal: int) -> int:
    """Return the key position of a lane's sample: unique in an epoch, consecutive in a lane."""
    return lane * MOST_SAMPLES + ordinal


@dataclass(frozen=True, kw_only=True)
class LaneDivision:
    """One rank's lanes, and its batch size."""

    batch_size: int
    drop_last: bool
    """Whether the rank's last batch of an epoch is dropped if it is not full."""
    rank: int = 0
    num_replicas: int = 1

    def lanes(self, num_lanes: int) -> range:
        return range(self.rank, num_lanes, self.num_replicas)

    def of_ranks(self, lanes: IndexArray) -> list[int]:
        """Return the per-rank sums of an int64 array [num_lanes]."""
        sums: list[int] = lanes.reshape(-1, self.num_replicas).sum(axis=0).tolist()
        return sums

    def num_batches(self, num_samples: int) -> int:
        whole, rest = divmod(num_samples, self.batch_size)
        return whole + (1 if rest and not self.drop_last else 0)
