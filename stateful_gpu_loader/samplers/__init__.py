"""Samplers that compute their order position by position, so that their state is a position.

They are subclasses of torch's samplers because trainers check with isinstance.
"""

from stateful_gpu_loader.samplers.balanced import BalancedSampler
from stateful_gpu_loader.samplers.blocks import Blocks
from stateful_gpu_loader.samplers.choice import OWN_SAMPLERS, default_sampler, is_map, order_of
from stateful_gpu_loader.samplers.mixture import MixtureSampler
from stateful_gpu_loader.samplers.orders import (
    ENDLESS,
    CallOrder,
    EpochOrder,
    Identity,
    Listed,
    PositionOrder,
    SequentialOrder,
    ShuffledOrder,
)
from stateful_gpu_loader.samplers.repeated import RepeatedSampler
from stateful_gpu_loader.samplers.resumable import OrderSampler
from stateful_gpu_loader.samplers.sharded import LastBatchPolicy, ShardSampler
from stateful_gpu_loader.samplers.shuffled import DistributedShuffledSampler, ShuffledSampler
from stateful_gpu_loader.samplers.subset import SubsetSampler
from stateful_gpu_loader.samplers.weighted import WeightedSampler

__all__ = [
    "ENDLESS",
    "OWN_SAMPLERS",
    "BalancedSampler",
    "Blocks",
    "CallOrder",
    "DistributedShuffledSampler",
    "EpochOrder",
    "Identity",
    "LastBatchPolicy",
    "Listed",
    "MixtureSampler",
    "OrderSampler",
    "PositionOrder",
    "RepeatedSampler",
    "SequentialOrder",
    "ShardSampler",
    "ShuffledOrder",
    "ShuffledSampler",
    "SubsetSampler",
    "WeightedSampler",
    "default_sampler",
    "is_map",
    "order_of",
]
