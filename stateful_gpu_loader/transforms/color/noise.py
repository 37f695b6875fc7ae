"""Normal noise from seeds: the same on every device, drawn where it is needed.

Philox4x32-10 in torch's int64, as ``randomness`` has it in NumPy, turns (seed, number of the
block) into eight halves of words; each half is the place of a value in a table of the normal
distribution. Whole numbers and look-ups are exact everywhere (law 1).
"""

from __future__ import annotations

import functools
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.batches.device_numbers import constant, on_device

_NUM_ROUNDS = 10
_MULTIPLIERS_HIGH = (0xD251, 0xCD9E)
_MULTIPLIERS_LOW = (0x1F53, 0x8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF
_HALF = 0xFFFF
_PER_BLOCK = 8
_GRANULE = 2.0**-20


def normal_noise(
    seeds: IndexArray, counts: IndexArray, device: torch.device
) -> tuple[Tensor, IndexArray]:
    """Standard normal values for several seeds, one after the other.

    Args:
        seeds: int64 [m, 2]: the low and the high 32 bits of each seed.
        counts: int64 [m]: how many values each seed gives, at least.
        device: where to draw them.

    Returns:
        float32 [...], multiples of 2**-20 between -4.33 and 4.33; and int64 [m], where the values
        of each seed begin. The first values of a seed do not depend on how many are drawn.

    >>> seeds = np.array([[1, 0], [2, 0]])
    >>> values, starts = normal_noise(seeds, np.array([3, 9]), torch.device("cpu"))
    >>> values.shape, starts
    (torch.Size([24]), array([0, 8]))
    """
    num_blocks = -(-counts // _PER_BLOCK)
    starts = np.cumsum(num_blocks) - num_blocks
    total = int(num_blocks.sum())
    table = on_device(np.column_stack((seeds, starts, num_blocks)), device)
    rows = table.repeat_interleave(table[:, 3], dim=0, output_size=total)
    blocks = torch.arange(total, device=device) - rows[:, 2]
    zeros = torch.zeros_like(blocks)
    words = philox(torch.stack((blocks, zeros, zeros, zeros)), rows[:, :2].T)
    halves = torch.stack((words & _HALF, words >> 16), dim=-1)
    places = halves.permute(1, 0, 2).reshape(-1)
    return _quantiles(device).index_select(0, places), starts * _PER_BLOCK


def philox(counter: Tensor, key: Tensor) -> Tensor:
    """``randomness.philox4x32`` on any device.

    Args:
        counter: int64 [4, n], each word within 32 bits.
        key: int64 [2, n], likewise.

    Returns:
        int64 [4, n], likewise.

    >>> zero = torch.zeros(4, 1, dtype=torch.int64)
    >>> [f"{word:08x}" for word in philox(zero, zero[:2]).flatten().tolist()]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    # Lanes 0 and 2 are multiplied, lanes 1 and 3 are mixed in; both kinds travel as a pair. No
    # product exceeds 48 bits: what overflows an int64 is nobody's promise.
    multiplied, mixed = counter[0::2], counter[1::2]
    high, low, steps = (
        constant(pair, torch.int64, counter.device).view(2, 1)
        for pair in (_MULTIPLIERS_HIGH, _MULTIPLIERS_LOW, _KEY_STEPS)
    )
    for _ in range(_NUM_ROUNDS):
        by_high, by_low = multiplied * high, multiplied * low
        upper = (by_high + (by_low >> 16)) >> 16
        lower = (((by_high & _HALF) << 16) + by_low) & _WORD
        multiplied = upper.flip(0) ^ mixed ^ key
        mixed = lower.flip(0)
        key = (key + steps) & _WORD
    return torch.stack((multiplied, mixed), dim=1).flatten(0, 1)


@functools.cache
def _quantiles(device: torch.device) -> Tensor:
    """The normal distribution in 2**16 equal parts, the middle of each: float32 [65536].

    Multiples of 2**-20, on which all C libraries agree.
    """
    inverse = NormalDist().inv_cdf
    upper = [round(inverse(0.5 + (i + 0.5) / 65536) / _GRANULE) * _GRANULE for i in range(32768)]
    values = [-value for value in reversed(upper)] + upper
    return torch.tensor(values, dtype=torch.float32).to(device)
