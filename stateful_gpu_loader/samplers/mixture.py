"""MixtureSampler: the samples of a MixedDataset in the proportions of its weights."""

from __future__ import annotations

from torch.utils.data import Sampler

from stateful_gpu_loader.datasets.mixture import MixedDataset
from stateful_gpu_loader.samplers.mixture_order import MixtureOrder
from stateful_gpu_loader.samplers.resumable import OrderSampler


class MixtureSampler(OrderSampler, Sampler[int]):
    """The samples of a MixedDataset in the proportions of its weights; the state is a position.

    *Bound.* Be p a part's share of D parts that have a weight, and L the ``block_length``. In the
    first n positions of any epoch, any n, the part comes p * n times to within
    L * p * (1 - p) + (1 + p * D) / 2, the second term alone without shuffling. For at a
    block's ends it is the second term, see Apportionment, and between them the count strays most
    where all of the part's share of the block comes first, or last. Shuffled, it strays by
    about sqrt(L * p * (1 - p)) / 2.

    Args:
        data_source: the mixture; indices are those of its concatenation.
        shuffle: shuffle the parts within each block, and each part in itself; else parts are
            interleaved as evenly as can be, each in its own order.
        seed: keys the order; None is settled by the loader that uses the sampler, or is 0.

    Raises:
        TypeError: the data source is no MixedDataset.

    >>> mixed = MixedDataset([range(4), range(8)], [0.5, 0.5], num_samples=8)
    >>> sampler = MixtureSampler(mixed, shuffle=False)
    >>> list(sampler)
    [0, 4, 1, 5, 2, 6, 3, 7]
    >>> list(sampler)
    [0, 8, 1, 9, 2, 10, 3, 11]
    """

    order: MixtureOrder

    def __init__(
        self, data_source: MixedDataset, *, shuffle: bool = True, seed: int | None = None
    ) -> None:
        if not isinstance(data_source, MixedDataset):
            raise TypeError(
                f"{type(data_source).__name__} is no MixedDataset. Remedy: "
                "MixtureSampler(MixedDataset(datasets, weights))"
            )
        self.order = MixtureOrder(data_source, shuffle=shuffle)
        self.seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        """Samples of an epoch."""
        return self.order.num_positions
