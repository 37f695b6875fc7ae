"""BalancedSampler: every class equally often in any part of an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from stateful_gpu_loader.randomness.permutation import ALGORITHM, VERSION, permuted
from stateful_gpu_loader.randomness.philox import Stream, words_of_64
from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.samplers.orders import EpochOrder, digest_of
from stateful_gpu_loader.samplers.resumable import OrderSampler
from stateful_gpu_loader.state.schema import as_int

MAX_CLASSES = 1 << 16
"""Largest number of classes, and so of positions in a block."""


@dataclass(frozen=True, eq=False)
class Classes:
    """A dataset's indices, grouped by class."""

    indices: IndexArray
    """Indices of class 0, then of class 1, ..., ascending within each; int64 [n]."""
    starts: IndexArray
    """Offset of each class in ``indices``, int64 [number of classes]."""
    sizes: IndexArray
    """Number of samples of each class, 1 or more; int64 [number of classes]."""

    @classmethod
    def of(cls, targets: Any) -> Classes:
        """Group the indices by target; classes are the distinct targets, in ascending order.

        >>> Classes.of([7, 5, 7]).indices.tolist()
        [1, 0, 2]
        """
        _, labels, sizes = np.unique(targets, return_inverse=True, return_counts=True)
        starts = np.cumsum(sizes) - sizes
        return cls(np.argsort(labels, kind="stable"), starts, sizes)


@dataclass(frozen=True)
class _BalancedEpoch:
    """One epoch's order: blocks with one sample of each class, in random order."""

    n: int
    classes: Classes
    seed: int
    epoch: int

    def __call__(self, positions: IndexArray) -> IndexArray:
        places = positions.reshape(-1)
        sizes = self.classes.sizes
        blocks, slots = np.divmod(places, len(sizes))
        # Each block takes the next sample of each class, cyclically.
        labels = self._labels(blocks, slots)
        rounds, turns = np.divmod(blocks, sizes[labels])
        members = permuted(
            turns,
            sizes[labels],
            seed=self.seed,
            epoch=self.epoch,
            numbers=rounds * len(sizes) + labels,
        )
        indices: IndexArray = self.classes.indices[self.classes.starts[labels] + members]
        return indices.reshape(positions.shape)

    def _labels(self, blocks: IndexArray, slots: IndexArray) -> IndexArray:
        """Return the class at each slot of a block; random words sort the classes."""
        num_classes = len(self.classes.sizes)
        distinct, rows = np.unique(blocks, return_inverse=True)
        words = words_of_64(self.seed, self.epoch, distinct, Stream.CLASSES, num_classes)
        labels: IndexArray = np.argsort(words, axis=1, kind="stable")[rows, slots]
        return labels


class BalancedOrder:
    """Orders of all epochs.

    Args:
        targets: class of each index, [n]: integers, strings or booleans.
        num_samples: number of samples in an epoch; None is the dataset's length.

    Raises:
        ValueError: there are no targets, they do not have one dimension, or they are fractions.
    """

    is_shuffled = True

    def __init__(self, targets: Any, num_samples: int | None) -> None:
        array = np.asarray(targets)
        if array.ndim != 1 or not len(array) or array.dtype.kind not in "iubUS":
            raise ValueError(
                f"targets have shape {array.shape} and dtype {array.dtype}. Remedy: pass the class "
                "of each sample, as integers or strings: [n], not empty"
            )
        self.classes = Classes.of(array)
        if len(self.classes.sizes) > MAX_CLASSES:
            raise ValueError(
                f"{len(self.classes.sizes)} classes are more than {MAX_CLASSES}. Remedy: pass the "
                "class of each sample, not its index"
            )
        self.num_positions = len(array) if num_samples is None else num_samples
        grouped = digest_of(np.concatenate([self.classes.sizes, self.classes.indices]))
        self.algorithm = (
            f"balanced-1 over {ALGORITHM}-{VERSION}, {len(self.classes.sizes)} classes, {grouped}, "
            f"{self.num_positions} samples"
        )

    def of_epoch(self, seed: int, epoch: int) -> EpochOrder:
        return _BalancedEpoch(self.num_positions, self.classes, seed, epoch)


class BalancedSampler(OrderSampler, Sampler[int]):
    """Yields every class equally often; its state is a position.

    Each block of positions contains every class once, in random order. So after any number of
    samples (all ranks together) the counts of two classes differ by at most one, whereas
    WeightedSampler with weights of 1 / size balances only on average. The samples of a class come
    in one random permutation after another, so their counts also differ by at most one. A class
    with more samples than the epoch has blocks shows another random part in each epoch.

    An index is computed in constant time, apart from sorting the classes of its block.

    Args:
        targets: class of each index, [n]: integers, strings or booleans. Copied.
        num_samples: number of samples in an epoch, all ranks together; None is ``len(targets)``.
        seed: seed of the order; None takes the loader's seed, or 0.

    Raises:
        ValueError: there are no targets, they do not have one dimension, or they are fractions; or
            ``num_samples`` is below 1.
        TypeError: ``num_samples`` is not an int.

    >>> targets = ["cat", "cat", "cat", "cat", "cat", "dog"]
    >>> [targets[index] for index in BalancedSampler(targets, seed=1)]
    ['cat', 'dog', 'dog', 'cat', 'dog', 'cat']
    """

    def __init__(
        self,
        targets: Sequence[Any],
        num_samples: int | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        count = None if num_samples is None else as_int("num_samples", num_samples)
        if count is not None and count < 1:
            raise ValueError(f"{num_samples = } gives no samples. Remedy: pass 1 or more")
        self.targets = targets
        self.seed = seed
        self.epoch = 0
        self.order = BalancedOrder(targets, count)

    @property
    def num_samples(self) -> int:
        """Number of samples in an epoch, all ranks together."""
        return self.order.num_positions
