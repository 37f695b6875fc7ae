"""SubsetSampler: given indices, in random order or in their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import SubsetRandomSampler

from stateful_gpu_loader.randomness.permutation import Permutation
from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.samplers.orders import (
    EpochOrder,
    Identity,
    ShuffledOrder,
    digest_of,
    positions_of,
)
from stateful_gpu_loader.samplers.resumable import OrderSampler, settled


@dataclass(frozen=True, eq=False)
class _SubsetEpoch:
    """One epoch's order of a subset: its indices, and an order of their places."""

    places: EpochOrder
    indices: range | IndexArray

    @property
    def n(self) -> int:
        return self.places.n

    def __call__(self, positions: IndexArray) -> IndexArray:
        places = self.places(positions)
        if isinstance(self.indices, range):
            return self.indices.start + self.indices.step * places
        return self.indices[places].astype(np.int64, copy=False)

    def positions_of(self, index: int) -> IndexArray:
        """Return the positions of an index; searches a list of indices."""
        if isinstance(self.indices, range):
            places = [self.indices.index(index)] if index in self.indices else []
        else:
            places = np.flatnonzero(self.indices == index).tolist()
        found = [positions_of(self.places, place) for place in places]
        return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *found]))


class SubsetOrder:
    """Orders of all epochs of a subset.

    Args:
        indices: indices of the subset, as for :class:`SubsetSampler`.
        shuffle: whether to permute them in each epoch.
    """

    def __init__(self, indices: Any, *, shuffle: bool) -> None:
        self._indices = indices if isinstance(indices, range) else _checked(indices)
        if isinstance(indices, range) and len(indices) and min(indices[0], indices[-1]) < 0:
            raise _negative(min(indices[0], indices[-1]))
        self.is_shuffled = shuffle
        base = ShuffledOrder.algorithm if shuffle else "sequential"
        name = repr(indices) if isinstance(indices, range) else digest_of(self._indices)  # type: ignore[arg-type]
        self.algorithm = f"subset-1 over {base}, {name}"

    @property
    def num_positions(self) -> int:
        return len(self._indices)

    def of_epoch(self, seed: int, epoch: int) -> EpochOrder:
        n = self.num_positions
        places: EpochOrder = Identity(n)
        if self.is_shuffled and n:
            places = Permutation(n, seed=seed, epoch=epoch)
        return _SubsetEpoch(places, self._indices)


class SubsetSampler(OrderSampler, SubsetRandomSampler):
    """Yields a subset of the dataset; its state is a position.

    The arguments are those of ``torch.utils.data.SubsetRandomSampler``. A range is not expanded,
    and an array of int64 (memory-mapped or not) is not copied: do not change it afterwards.

    Args:
        indices: indices of the dataset, none negative; any sequence or tensor of ints.
        generator: used in place of a seed; a copy draws the seed, so it does not advance.
        seed: seed of the order; None takes the loader's seed, or 0.
        shuffle: whether to permute the indices in each epoch; False keeps their order.

    Raises:
        ValueError: an index is negative, the indices are not a list of ints, or both seed and
            generator are given.

    >>> sorted(SubsetSampler([4, 8, 15, 16], seed=1))
    [4, 8, 15, 16]
    >>> list(SubsetSampler(range(0, 10**12, 10**11), shuffle=False))[-1]
    900000000000
    """

    def __init__(
        self,
        indices: Sequence[int],
        generator: torch.Generator | None = None,
        *,
        seed: int | None = None,
        shuffle: bool = True,
    ) -> None:
        super().__init__(indices, generator)
        self.seed = settled(seed, generator)
        self.epoch = 0
        self.shuffle = shuffle
        self.order = SubsetOrder(indices, shuffle=shuffle)


def _checked(indices: Any) -> IndexArray:
    """Return the indices as an array of int64, copied only if necessary."""
    array = np.asarray(indices)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ValueError(
            f"indices have shape {array.shape} and dtype {array.dtype}. Remedy: pass a list of "
            "ints; of a mask, np.flatnonzero(mask)"
        )
    if array.size and array.min() < 0:
        raise _negative(int(array.min()))
    if array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"index {array.max()} is beyond 2**63 - 1. Remedy: pass int64")
    return array.astype(np.int64, copy=False)


def _negative(least: int) -> ValueError:
    return ValueError(f"index {least} is negative. Remedy: count from 0: len(dataset) + {least}")
