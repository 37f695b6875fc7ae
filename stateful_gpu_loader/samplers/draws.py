"""Keyed integers of 64 bits, and integers below a bound made of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.randomness.philox import words
from stateful_gpu_loader.records import IndexArray

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def words_of_64(
    seed: int, epoch: int, positions: IndexArray, stream: int, num_words: int
) -> npt.NDArray[np.uint64]:
    """Draw words of 64 bits; arguments and errors are those of ``randomness.words``.

    Returns:
        uint64 [n, num_words].

    >>> from stateful_gpu_loader.randomness.philox import Stream
    >>> words_of_64(42, 0, np.array([7]), Stream.WEIGHTED, 2).shape
    (1, 2)
    """
    halves = words(seed, epoch, positions, stream, 2 * num_words).astype(np.uint64)
    joined: npt.NDArray[np.uint64] = halves[:, 0::2] << _HALF | halves[:, 1::2]
    return joined


def below(drawn: npt.NDArray[np.uint64], end: int) -> IndexArray:
    """Turn words into integers in ``range(end)``: the upper half of ``word * end``.

    No integer is more probable than another by more than ``end / 2**64``.

    Args:
        drawn: uint64 of any shape.
        end: from 1 to 2**63.

    Returns:
        int64 of the same shape.

    >>> below(np.array([0, 2**63, 2**64 - 1], dtype=np.uint64), 10).tolist()
    [0, 5, 9]
    """
    end_high, end_low = np.uint64(end >> 32), np.uint64(end & 0xFFFFFFFF)
    high, low = drawn >> _HALF, drawn & _LOW
    first = high * end_low + (low * end_low >> _HALF)
    second = low * end_high + (first & _LOW)
    upper = high * end_high + (first >> _HALF) + (second >> _HALF)
    return np.asarray(upper, dtype=np.int64)
