"""ShuffledSampler: a keyed permutation of the whole dataset."""

from __future__ import annotations

from collections.abc import Sized

from torch.utils.data import RandomSampler

from stateful_gpu_loader.samplers.orders import ShuffledOrder
from stateful_gpu_loader.samplers.resumable import OrderSampler


class ShuffledSampler(OrderSampler, RandomSampler):
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
