"""WeightedSampler: draws in proportion to weights, torch's WeightedRandomSampler by position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.utils.data import WeightedRandomSampler

from stateful_gpu_loader.samplers.alias import AliasOrder, FloatArray
from stateful_gpu_loader.samplers.orders import PositionOrder
from stateful_gpu_loader.samplers.resumable import OrderSampler
from stateful_gpu_loader.samplers.seeds import settled
from stateful_gpu_loader.samplers.weighted_without_replacement import RaceOrder
from stateful_gpu_loader.state.schema import as_int


class WeightedSampler(OrderSampler, WeightedRandomSampler):
    """Indices drawn in proportion to weights; its state is a position.

    Arguments as ``torch.utils.data.WeightedRandomSampler``. With replacement each position is a
    draw from an alias table, in constant time, of any number of weights (torch's are at most
    2**24). Without it an order of the epoch is sorted once, in O(n log n). A weight of 0 is never
    drawn.

    Args:
        weights: [n], one for each index of the dataset; of any sum. They are copied: a change of
            :attr:`weights` afterwards changes no draw, another sampler does.
        num_samples: draws in an epoch, all ranks together.
        replacement: whether an index can be drawn more than once an epoch.
        generator: gives the seed in its place; it is asked on a copy, and does not move.
        seed: keys the draws; None is settled by the loader that uses the sampler, or is 0.

    Raises:
        ValueError: a weight is negative, infinite or NaN, or all are 0; they have not one
            dimension; ``num_samples`` is no positive int, or without replacement more than there
            are positive weights; both seed and generator are given.

    >>> list(WeightedSampler([0.1, 0.0, 0.9], 8, seed=1))
    [2, 2, 2, 2, 2, 2, 2, 0]
    >>> sorted(WeightedSampler([0.1, 0.0, 0.9], 2, replacement=False, seed=1))
    [0, 2]
    """

    def __init__(
        self,
        weights: Sequence[float] | torch.Tensor,
        num_samples: int,
        replacement: bool = True,
        generator: torch.Generator | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        count = as_int("num_samples", num_samples)
        given = weights.detach().cpu().numpy() if isinstance(weights, torch.Tensor) else weights
        own = np.array(given, dtype=np.float64)
        super().__init__(torch.from_numpy(own.copy()), count, replacement, generator)  # type: ignore[arg-type]
        _check_weights(own, count, replacement=replacement)
        self.seed = settled(seed, generator)
        self.epoch = 0
        self.order: PositionOrder = AliasOrder(own, count) if replacement else RaceOrder(own, count)


def _check_weights(weights: FloatArray, num_samples: int, *, replacement: bool) -> None:
    """Raises: ValueError: nothing can be drawn by them."""
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        raise ValueError(
            f"{len(bad)} weights are negative, infinite or NaN, the first weights[{bad[0]}] = "
            f"{weights[bad[0]]}. Remedy: pass finite weights of 0 or more"
        )
    num_positive = int(np.count_nonzero(weights))
    if not num_positive:
        raise ValueError(
            f"none of {len(weights)} weights is positive. Remedy: pass one for each index of the "
            "dataset, some above 0"
        )
    if not replacement and num_samples > num_positive:
        raise ValueError(
            f"{num_samples = } without replacement, and only {num_positive} weights are positive. "
            "Remedy: draw fewer, or with replacement"
        )
