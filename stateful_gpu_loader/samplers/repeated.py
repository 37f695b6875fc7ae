"""RepeatedSampler: every sample several times an epoch, for repeated augmentation."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass, replace

import numpy as np
from torch.utils.data import Sampler

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.samplers.orders import EpochOrder, ShuffledOrder
from stateful_gpu_loader.samplers.resumable import OrderSampler
from stateful_gpu_loader.samplers.shuffled import Rounds
from stateful_gpu_loader.state.schema import as_int


@dataclass(frozen=True)
class _RepeatedEpoch:
    """One epoch's order; the copies of a sample are adjacent or scattered."""

    n: int
    length: int
    num_repeats: int
    adjacent: bool
    rounds: Rounds | None
    """Permutations of the dataset, or of all copies if they are scattered; None keeps the order."""

    def __call__(self, positions: IndexArray) -> IndexArray:
        copies = positions // self.num_repeats if self.adjacent else positions
        return (copies if self.rounds is None else self.rounds(copies)) % self.length

    def positions_of(self, index: int) -> IndexArray:
        """Return the positions of all copies of an index."""
        if index >= self.length:
            return np.empty(0, dtype=np.int64)
        num_copies = -(-self.n // self.num_repeats) if self.adjacent else self.n
        if self.rounds is None:
            copies = np.arange(index, num_copies, self.length, dtype=np.int64)
        else:
            rounds = replace(self.rounds, n=num_copies)
            values = range(index, rounds.length, self.length)
            copies = np.sort(np.concatenate([rounds.positions_of(value) for value in values]))
        if not self.adjacent:
            return copies
        neighbours = np.arange(self.num_repeats, dtype=np.int64)
        positions = (copies[:, None] * self.num_repeats + neighbours).reshape(-1)
        return positions[positions < self.n]


class RepeatedOrder:
    """Orders of all epochs; arguments as for :class:`RepeatedSampler`."""

    def __init__(
        self,
        data_source: Sized,
        num_repeats: int,
        *,
        num_samples: int | None,
        shuffle: bool,
        adjacent: bool,
    ) -> None:
        self._data_source = data_source
        self._num_repeats = num_repeats
        self._num_samples = num_samples
        self._adjacent = adjacent
        self.is_shuffled = shuffle
        base = ShuffledOrder.algorithm if shuffle else "sequential"
        where = "adjacent" if adjacent else "anywhere"
        self.algorithm = f"repeated-1 over {base}, {num_repeats} times {len(data_source)}, {where}"

    @property
    def num_positions(self) -> int:
        whole = self._num_repeats * len(self._data_source)
        return whole if self._num_samples is None else self._num_samples

    def of_epoch(self, seed: int, epoch: int) -> EpochOrder:
        n, length = self.num_positions, len(self._data_source)
        in_round = length if self._adjacent else length * self._num_repeats
        rounds = Rounds(n, in_round, seed, epoch) if self.is_shuffled else None
        return _RepeatedEpoch(n, length, self._num_repeats, self._adjacent, rounds)


class RepeatedSampler(OrderSampler, Sampler[int]):
    """Yields each sample several times an epoch, each time with other augmentations.

    This is repeated augmentation (Hoffer et al., "Augment your batch", CVPR 2020; Berman et al.,
    "MultiGrain", 2019). By default the copies of a sample are adjacent in the order that the ranks
    share, so they go to different ranks, or into one batch if there is one rank.
    ``num_samples=len(data_source)`` keeps the epoch's length; an epoch then contains ``1 /
    num_repeats`` of the dataset, as with torchvision's RASampler and timm's RepeatAugSampler (which
    use ``len(data_source) // 256 * 256``).

    Args:
        data_source: the dataset, of 1 sample or more.
        num_repeats: number of copies of each sample, 1 or more.
        num_samples: number of samples in an epoch, all ranks together; None is ``num_repeats``
            times the dataset. Beyond that the dataset is repeated in another order.
        shuffle: whether to permute the samples in each epoch; False keeps the dataset's order.
        adjacent: whether copies are adjacent; False scatters them over the epoch (without
            ``shuffle``, the whole dataset is repeated).
        seed: seed of the order; None takes the loader's seed, or 0.

    Raises:
        ValueError: the dataset is empty, or a number is below 1.
        TypeError: a number is not an int.

    >>> list(RepeatedSampler(range(3), 2, seed=2))
    [1, 1, 2, 2, 0, 0]
    >>> list(RepeatedSampler(range(3), 2, seed=2, adjacent=False))
    [1, 2, 0, 1, 2, 0]
    """

    def __init__(
        self,
        data_source: Sized,
        num_repeats: int = 3,
        *,
        num_samples: int | None = None,
        shuffle: bool = True,
        adjacent: bool = True,
        seed: int | None = None,
    ) -> None:
        self.data_source = data_source
        self.num_repeats = as_int("num_repeats", num_repeats)
        count = None if num_samples is None else as_int("num_samples", num_samples)
        numbers = {"num_repeats": self.num_repeats, "num_samples": 1 if count is None else count}
        for name, value in {**numbers, "len(data_source)": len(data_source)}.items():
            if value < 1:
                raise ValueError(f"{name} = {value} gives no samples. Remedy: pass 1 or more")
        self.shuffle = shuffle
        self.adjacent = adjacent
        self.seed = seed
        self.epoch = 0
        self.order = RepeatedOrder(
            data_source, self.num_repeats, num_samples=count, shuffle=shuffle, adjacent=adjacent
        )

    @property
    def num_samples(self) -> int:
        """Number of samples in an epoch, all ranks together."""
        return self.order.num_positions
