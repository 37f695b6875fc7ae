"""DistributedShuffledSampler: one rank's part of an order that all ranks share."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import numpy as np
from torch.utils.data import DistributedSampler

from stateful_gpu_loader.samplers.orders import PositionOrder, SequentialOrder, ShuffledOrder
from stateful_gpu_loader.samplers.resumable import Resumable


class DistributedShuffledSampler(Resumable, DistributedSampler):  # type: ignore[type-arg]
    """Yields one rank's part of an order that all ranks share.

    Rank r of R yields positions r, r + R, r + 2R, ... The tail wraps around to the epoch's start,
    or is dropped, so that all ranks yield as many. The arguments are those of
    ``torch.utils.data.DistributedSampler``; with None, ``num_replicas`` and ``rank`` are read from
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
