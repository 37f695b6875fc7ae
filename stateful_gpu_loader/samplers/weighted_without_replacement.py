"""RaceOrder: weighted draws without replacement."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.randomness.philox import Stream
from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.samplers.alias import FloatArray
from stateful_gpu_loader.samplers.digest import digest_of
from stateful_gpu_loader.samplers.draws import words_of_64
from stateful_gpu_loader.samplers.last_epoch import LastEpoch
from stateful_gpu_loader.samplers.orders import EpochOrder, Listed

_LN_2 = 0.6931471805599453
_NUM_TERMS = 18


def exponentials(words: npt.NDArray[np.uint64]) -> FloatArray:
    """Exponential variates, each from one word: -log(1 - word / 2**64).

    From sums, products and quotients alone, which are rounded the same everywhere; the last bit
    of NumPy's log depends on the CPU, and an order may hang on it. Small ones are as exact as
    large ones, to about 1e-15 of their value.

    Args:
        words: uint64 of any shape.

    Returns:
        float64 of the same shape, above 0 and below 37.

    >>> exponentials(np.array([2**63], dtype=np.uint64)).round(6).tolist()
    [0.693147]
    """
    part = np.clip(words * 2.0**-64, 2.0**-65, 1 - 2.0**-53)
    # 1 - part = fraction * 2**exponent, and -log(fraction) = 2 * atanh((1 - fraction) / (1 +
    # fraction)); as long as the exponent is 0, 1 - fraction is the part itself, unrounded.
    fraction, exponent = np.frexp(1 - part)
    halvings = np.maximum(-exponent, 0)
    missing = np.where(halvings > 0, 1 - fraction, part)
    ratio = missing / (2 - missing)
    square = ratio * ratio
    series = np.zeros_like(ratio)
    for term in range(_NUM_TERMS, -1, -1):
        series = series * square + 1 / (2 * term + 1)
    variates: FloatArray = halvings * _LN_2 + 2 * ratio * series
    return variates


class RaceOrder(LastEpoch):
    """The weighted draws of all epochs, without replacement.

    Every index runs for an exponential time at its weight as speed, and they are drawn in the
    order in which they arrive: each next one in proportion to its weight among those that are
    left (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", Information
    Processing Letters 97, 2006), which is the distribution of torch.multinomial. The arrivals are
    sorted once an epoch, in O(n log n) time and O(n) memory; the state is a position as ever.

    Args:
        weights: float64 [n], finite, none negative.
        num_samples: draws in an epoch, at most as many as there are positive weights.
    """

    is_shuffled = True

    def __init__(self, weights: FloatArray, num_samples: int) -> None:
        self._weights = weights
        self._num_samples = num_samples
        self.algorithm = f"race-1 over {digest_of(weights)}, {num_samples} draws"

    @property
    def num_positions(self) -> int:
        return self._num_samples

    def begin(self, seed: int, epoch: int) -> EpochOrder:
        runners: IndexArray = np.flatnonzero(self._weights)
        # Words 0 and 1 of a position are draws with replacement.
        words = words_of_64(seed, epoch, runners, Stream.WEIGHTED, 3)[:, 2]
        with np.errstate(over="ignore"):
            arrivals = exponentials(words) / self._weights[runners]
        first = np.argsort(arrivals, kind="stable")[: self._num_samples]
        return Listed(runners[first].astype(np.int64, copy=False))
