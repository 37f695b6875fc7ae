"""InOrderSampler: the dataset's own order, for a loader that is told the epoch."""

from __future__ import annotations

from collections.abc import Sized

from torch.utils.data import SequentialSampler

from stateful_gpu_loader.samplers.orders import PositionOrder, SequentialOrder
from stateful_gpu_loader.samplers.resumable import OrderSampler


class InOrderSampler(OrderSampler, SequentialSampler):
    """The dataset's own order.

    Trainers tell the epoch to samplers that have ``set_epoch``, and the augmentations of an epoch
    are keyed by it, whatever the order.

    >>> list(InOrderSampler(range(3)))
    [0, 1, 2]
    """

    def __init__(self, data_source: Sized) -> None:
        super().__init__(data_source)
        self.seed = None
        self.epoch = 0
        self.order: PositionOrder = SequentialOrder(data_source)
