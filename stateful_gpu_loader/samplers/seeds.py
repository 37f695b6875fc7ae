"""The seed of a sampler that is given torch's ``generator`` instead of one."""

from __future__ import annotations

import torch

from stateful_gpu_loader.randomness.seed import SettledSeed


def settled(seed: int | None, generator: torch.Generator | None) -> int | None:
    """The seed that keys an order: the given one, or what the generator would give next.

    The generator is asked on a copy: it does not move, and decides all epochs at once, where
    torch's samplers draw from it in each.

    Raises:
        ValueError: both are given.

    >>> settled(None, torch.Generator().manual_seed(1)) == settled(
    ...     None, torch.Generator().manual_seed(1)
    ... )
    True
    >>> settled(5, None)
    5
    """
    if generator is None:
        return seed
    if seed is not None:
        raise ValueError(
            f"{seed = } and a generator were given, and either decides the order. Remedy: leave "
            "one of them out"
        )
    return SettledSeed(None, generator, sharded=False).value
