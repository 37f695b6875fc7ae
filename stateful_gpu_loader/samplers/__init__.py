"""Index orders that are addressed by position, so that their state is a position.

They are subclasses of torch's samplers because trainers ask with isinstance.
"""

from stateful_gpu_loader.samplers.choice import OWN_SAMPLERS, default_sampler, is_map, order_of
from stateful_gpu_loader.samplers.distributed import DistributedShuffledSampler
from stateful_gpu_loader.samplers.orders import (
    EpochOrder,
    Identity,
    Listed,
    PositionOrder,
    SequentialOrder,
    ShuffledOrder,
)
from stateful_gpu_loader.samplers.resumable import OrderSampler
from stateful_gpu_loader.samplers.shuffled import ShuffledSampler

__all__ = [
    "OWN_SAMPLERS",
    "DistributedShuffledSampler",
    "EpochOrder",
    "Identity",
    "Listed",
    "OrderSampler",
    "PositionOrder",
    "SequentialOrder",
    "ShuffledOrder",
    "ShuffledSampler",
    "default_sampler",
    "is_map",
    "order_of",
]
