"""Index orders that are addressed by position, so that their state is a position.

They are subclasses of torch's samplers because trainers ask with isinstance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch.utils.data import (
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from stateful_gpu_loader import order
from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.order import Permutation
from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.state import as_epoch

_BLOCK = 4096


class EpochOrder(Protocol):
    """One epoch's global order: from positions to the dataset's indices."""

    @property
    def n(self) -> int:
        """Samples in the epoch, all ranks together; fixed while the epoch lasts."""
        ...

    def __call__(self, positions: IndexArray) -> IndexArray:
        """int64 [...] positions in ``range(n)`` to int64 [...] indices."""
        ...


@runtime_checkable
class PositionOrder(Protocol):
    """The orders of all epochs."""

    algorithm: str
    """Name and version, for the fingerprint."""

    @property
    def num_positions(self) -> int:
        """Samples in an epoch that begins now, all ranks together."""
        ...

    def of_epoch(self, seed: int, epoch: int) -> EpochOrder:
        """The order of one epoch."""
        ...


@dataclass(frozen=True)
class Identity:
    """The dataset's own order, as an EpochOrder.

    >>> Identity(5)(np.array([3, 4])).tolist()
    [3, 4]
    """

    n: int

    def __call__(self, positions: IndexArray) -> IndexArray:
        return positions


@dataclass(frozen=True, eq=False)
class Listed:
    """An order that is written down, as an EpochOrder.

    >>> Listed(np.array([2, 0, 1]))(np.array([1, 2])).tolist()
    [0, 1]
    """

    indices: IndexArray

    @property
    def n(self) -> int:
        return len(self.indices)

    def __call__(self, positions: IndexArray) -> IndexArray:
        return self.indices[positions]


class SequentialOrder:
    """The dataset's own order in every epoch."""

    algorithm = "sequential"

    def __init__(self, data_source: Sized) -> None:
        self._data_source = data_source

    @property
    def num_positions(self) -> int:
        return len(self._data_source)

    def of_epoch(self, seed: int, epoch: int) -> EpochOrder:
        return Identity(self.num_positions)


class ShuffledOrder(SequentialOrder):
    """A keyed permutation of the dataset in each epoch, in constant memory."""

    algorithm = f"{order.ALGORITHM}-{order.VERSION}"

    def of_epoch(self, seed: int, epoch: int) -> EpochOrder:
        # range(0) has one order, and Permutation none.
        n = self.num_positions
        return Permutation(n, seed=seed, epoch=epoch) if n else Identity(0)


class _Resumable:
    """State of a sampler that is iterated by itself: seed, epoch, position."""

    seed: Any
    epoch: int
    requested_epoch: int | None = None
    """Set by :meth:`set_epoch`, until a loader takes notice."""
    resume_at: int | None = None
    """Set by :meth:`load_state_dict`, until the next iteration."""
    _position: int = 0

    def set_epoch(self, epoch: int) -> None:
        """The next iteration shuffles as this epoch.

        Raises:
            ValueError: the epoch is no int from 0 to 2**32 - 2.
        """
        self.epoch = self.requested_epoch = as_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Seed, epoch and the number of indices already yielded in it."""
        position = self._position if self.resume_at is None else self.resume_at
        return {"seed": self.seed, "epoch": self.epoch, "position": position}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The next iteration yields the rest of the epoch.

        Raises:
            StateMismatch: a field is missing, no int, or the seed is another explicit one.
        """
        found = {field: state_dict.get(field) for field in ("seed", "epoch", "position")}
        for field, value in found.items():
            if not isinstance(value, int):
                raise StateMismatch(
                    field,
                    saved=value,
                    present="an int",
                    remedy=f"load what {type(self).__name__}.state_dict() returned",
                )
        if self.seed not in (None, found["seed"]):
            raise StateMismatch(
                "seed",
                saved=found["seed"],
                present=self.seed,
                remedy="build the sampler with the saved seed, or with seed=None",
            )
        self.seed, self.epoch = found["seed"], int(found["epoch"] or 0)
        self.resume_at = found["position"]

    def _ordinals(self, num_samples: int) -> Iterator[range]:
        """Blocks of ordinals that are still to yield; the state follows them one by one."""
        start = self.resume_at or 0
        self.resume_at, self._position = None, start
        for first in range(start, num_samples, _BLOCK):
            yield range(first, min(first + _BLOCK, num_samples))
        self._position = 0
        self.epoch += 1


class ShuffledSampler(_Resumable, RandomSampler):
    """A shuffled order of the whole dataset; its state is a position.

    Args:
        data_source: anything with a length from 1 to 2**63 - 1.
        seed: keys the order; None is settled by the loader that uses the sampler, or is 0.

    Source of the order: :class:`stateful_gpu_loader.order.Permutation`.

    >>> sampler = ShuffledSampler(range(6), seed=1)
    >>> first = iter(sampler)
    >>> seen = [next(first), next(first)]
    >>> resumed = ShuffledSampler(range(6), seed=1)
    >>> resumed.load_state_dict(sampler.state_dict())
    >>> sorted(seen + list(resumed))
    [0, 1, 2, 3, 4, 5]
    """

    def __init__(self, data_source: Sized, *, seed: int | None = None) -> None:
        super().__init__(data_source)
        self.seed = seed
        self.epoch = 0
        self.order = ShuffledOrder(data_source)

    def __iter__(self) -> Iterator[int]:
        indices = self.order.of_epoch(self.seed or 0, self.epoch)
        for block in self._ordinals(indices.n):
            for index in indices(np.arange(block.start, block.stop, dtype=np.int64)).tolist():
                self._position += 1
                yield index


class DistributedShuffledSampler(_Resumable, DistributedSampler):  # type: ignore[type-arg]
    """One rank's part of an order that all ranks share.

    Rank r of R yields positions r, r + R, r + 2R, ...; the tail wraps to the epoch's start, or
    is dropped, so that all ranks yield as many. Arguments as
    ``torch.utils.data.DistributedSampler``; None for ``num_replicas`` and ``rank`` reads
    ``torch.distributed``.

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
        """Serve another rank of another number of ranks from now on."""
        whole, rest = divmod(self.order.num_positions, num_replicas)
        self.num_replicas, self.rank = num_replicas, rank
        self.num_samples = whole + (1 if rest and not self.drop_last else 0)
        self.total_size = self.num_samples * num_replicas

    def __iter__(self) -> Iterator[int]:
        indices = self.order.of_epoch(self.seed or 0, self.epoch)
        for block in self._ordinals(self.num_samples):
            ordinals = np.arange(block.start, block.stop, dtype=np.int64)
            positions = (self.rank + ordinals * self.num_replicas) % indices.n
            for index in indices(positions).tolist():
                self._position += 1
                yield index


def default_sampler(
    dataset: Any,
    *,
    shuffle: bool,
    drop_last: bool,
    seed: int | None,
    num_replicas: int | str | None,
    rank: int | None,
) -> Sampler[int]:
    """The sampler that stands in for a missing one."""
    if num_replicas is not None:
        replicas = 1 if isinstance(num_replicas, str) else num_replicas
        return DistributedShuffledSampler(
            dataset, replicas, rank or 0, shuffle=shuffle, seed=seed, drop_last=drop_last
        )
    return ShuffledSampler(dataset, seed=seed) if shuffle else SequentialSampler(dataset)


def is_map(dataset: Any) -> bool:
    """Whether a dataset is map-style."""
    return not isinstance(dataset, IterableDataset)


def order_of(sampler: Any) -> PositionOrder | None:
    """The order behind a sampler that is addressed by position, None for any other.

    Subclasses are others: they may yield what they like.
    """
    if type(sampler) in (ShuffledSampler, DistributedShuffledSampler):
        own: PositionOrder = sampler.order
        return own
    if type(sampler) is SequentialSampler:
        return SequentialOrder(sampler.data_source)
    return None
