"""Lanes: how the shards of a dataset are dealt, and which lanes a rank serves.

The number of lanes is a constant of the dataset. So the order of samples within a lane does not
depend on the number of workers or ranks, and any worker can continue a lane from its cursor.
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
"""The most samples that a lane may give in an epoch."""

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
    """Of all shards."""
    order: IndexArray
    """int64 [number of shards]: the epoch's order of them."""
    num_lanes: int

    def shards_of(self, lane: int) -> list[str]:
        """The names of a lane's shards, in the order in which they are read."""
        return [self.names[i] for i in self.order[lane :: self.num_lanes].tolist()]


class LanePlan:
    """How a loader reads a sharded dataset.

    Args:
        dataset: whose ``shards()`` is asked once.
        shuffle: whether the shards are permuted in each epoch, and the samples in windows.

    Raises:
        ValueError: no shards, a name twice, or ``num_lanes`` or ``shuffle_buffer`` out of range.
        TypeError: the dataset has a state of its own, or names and numbers of other types.
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
                f"num_lanes={given} and shuffle_buffer={buffer} of "
                f"{type(dataset).__name__}: there are 1 to {_MOST_LANES} lanes, and at least one "
                "sample in the buffer. Remedy: set them so"
            )
        self.window = max(1, buffer // self.num_lanes) if shuffle else 0
        """Samples of a lane that are shuffled together; 0 where none are."""
        self._num_samples: IndexArray | None = None
        self._asked_num_samples = False

    @property
    def algorithm(self) -> str:
        """What decides the order besides the seed and the shards, for the fingerprint."""
        windows = f", windows of {self.window}" if self.is_shuffled else ""
        # They decide where each rank's epoch ends.
        counts = self.num_samples()
        sizes = (
            "unknown"
            if counts is None
            else hashlib.blake2b(np.array(counts, dtype="<i8").tobytes(), digest_size=8).hexdigest()
        )
        return f"{ALGORITHM}, {self.num_lanes} lanes{windows}, numbers of samples {sizes}"

    @staticmethod
    def num_lanes_of(algorithm: str) -> int | None:
        """How many lanes :attr:`algorithm` speaks of; None where it is another order.

        >>> LanePlan.num_lanes_of("lanes-1, 12 lanes, numbers of samples unknown")
        12
        """
        found = re.match(rf"{ALGORITHM}, (\d+) lanes\b", algorithm)
        return None if found is None else int(found[1])

    def num_shards(self, lane: int) -> int:
        """Of one lane, in every epoch."""
        return len(range(lane, len(self.names), self.num_lanes))

    def of_epoch(self, seed: int, epoch: int) -> EpochLanes:
        """The lanes of one epoch."""
        order = np.arange(len(self.names), dtype=np.int64)
        if self.is_shuffled:
            order = Permutation(len(order), seed=seed, epoch=epoch)(order)
        return EpochLanes(self.names, order, self.num_lanes)

    def check_ranks(self, num_replicas: int) -> None:
        """Check that all ranks serve the same number of lanes.

        Raises:
            ValueError: the number of lanes is no multiple of ``num_replicas``.
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
        """int64 [number of shards]: samples of each; None unless all are known.

        Raises:
            ValueError: the dataset gives a number below 0.
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
        """Batches that every rank delivers until the end of the epoch: as many as the largest has.

        Args:
            counts: samples that each lane has given already; None is the beginning.

        Returns:
            None where the numbers of samples are not known.
        """
        lanes = self._samples_of_lanes(seed, epoch)
        if lanes is None:
            return None
        for lane, count in (counts or {}).items():
            lanes[lane] = max(0, lanes[lane] - count)
        return max(division.num_batches(number) for number in division.of_ranks(lanes))

    def check_shares(self, seed: int, epoch: int, division: LaneDivision) -> None:
        """Check that no rank is without a batch in an epoch in which another rank has one.

        Every rank raises the same error, so that none waits for another.

        Raises:
            ValueError: a rank has none.
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
        """int64 [num_lanes]: samples of each lane in one epoch."""
        samples = self.num_samples()
        if samples is None:
            return None
        order = self.of_epoch(seed, epoch).order
        lanes = np.zeros(self.num_lanes, dtype=np.int64)
        np.add.at(lanes, np.arange(len(order)) % self.num_lanes, samples[order])
        return lanes


def key_of_lane(lane: int, ordinal: int) -> int:
    """The key position of a lane's sample: no two of an epoch share one.

    Neighbours in a lane have neighbouring keys. A lane gives fewer than 2**40 samples in an epoch.
    """
    return lane * MOST_SAMPLES + ordinal


@dataclass(frozen=True, kw_only=True)
class LaneDivision:
    """What one rank serves, and in batches of what size."""

    batch_size: int
    drop_last: bool
    """Whether the rank's last batch of an epoch is left out if it is not full."""
    rank: int = 0
    num_replicas: int = 1

    def lanes(self, num_lanes: int) -> range:
        """The rank's lanes."""
        return range(self.rank, num_lanes, self.num_replicas)

    def of_ranks(self, lanes: IndexArray) -> list[int]:
        """Of int64 [num_lanes] numbers, the sum of each rank's lanes."""
        sums: list[int] = lanes.reshape(-1, self.num_replicas).sum(axis=0).tolist()
        return sums

    def num_batches(self, num_samples: int) -> int:
        """Of one rank."""
        whole, rest = divmod(num_samples, self.batch_size)
        return whole + (1 if rest and not self.drop_last else 0)
