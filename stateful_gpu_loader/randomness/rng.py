"""A random number generator whose whole state is one short string."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import overload

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.randomness.philox_stream import CountedDraws, Floats, derived_key
from stateful_gpu_loader.randomness.rng_tensors import (
    FLAGS,
    FLOATS,
    INTEGERS,
    check_dtype,
    rounded_within,
)

# In standard deviations: the radius of Box and Muller is at most sqrt(2 log(2**53)).
_GREATEST_NORMAL = 8.6

_Size = int | Sequence[int]
_Integers = npt.NDArray[np.int64]
_Flips = npt.NDArray[np.bool_]


class RNG(CountedDraws):
    """Random numbers from a counter: NumPy's common methods, and a state of 41 characters.

    The generator is a row of 2**64 draws of 64 bits, without end: draw k is one half of block
    k // 2 of Philox4x32-10 under a key. Its state is the key and the number of draws consumed,
    so it is saved and set in constant time, and no seed is needed to set it:

        philox1_<key, 16 hexadecimal digits>_<draws consumed, 16 hexadecimal digits>

    Each number consumes draws of its own, in order: one in `uniform`, `coin_flip` and
    `permutation`, two in `normal`, one in `integers` and another for each that it rejects. So
    an array of n numbers holds what n single calls would give (one call costs about 0.1 ms
    either way). The numbers are equal on every machine, but for the last bits of `normal`,
    which follow the logarithm and the cosine of the NumPy build.

    A torch dtype makes a tensor of that dtype, on the CPU, of the same draws: the numbers that
    NumPy would get, rounded to the nearest of the dtype. Numbers that the dtype may not hold are
    refused before any is drawn.

    Args:
        seed: -2**63 <= seed < 2**64; taken modulo 2**64. Draws have nothing in common with those
            that a loader of this seed makes. None draws a seed from Python's ``random``, as DALI's
            RNG does: for one that is about to be restored, or that need not repeat. Its state
            holds the key, so that it resumes like any other.
        name: ``RNG(seed, name)`` is ``RNG(seed).stream(name)``.

    Raises:
        ValueError: the seed does not fit into 64 bits.

    >>> rng = RNG(42)
    >>> rng.uniform(-30, 30, size=3)
    array([ 21.99428417, -26.13820149,   0.12038489])
    >>> state = rng.get_state()
    >>> state
    'philox1_1adeceffff50d997_0000000000000003'
    >>> following = rng.integers(100, size=4)
    >>> restored = RNG()
    >>> restored.set_state(state)
    >>> bool((restored.integers(100, size=4) == following).all())
    True
    """

    def stream(self, name: str) -> RNG:
        """An independent generator, at its beginning, by name.

        It depends on this one's key alone, not on what was drawn from it, so that a new stream
        disturbs none before it.

        >>> rng = RNG(42)
        >>> rng.stream("crop").uniform() == RNG(42, "crop").uniform()
        True
        """
        child = RNG(0)
        child._key = derived_key(self._key, name)
        return child

    @overload
    def uniform(self, low: float = ..., high: float = ..., size: None = ...) -> float: ...
    @overload
    def uniform(self, low: float = ..., high: float = ..., size: _Size = ...) -> Floats: ...
    @overload
    def uniform(
        self,
        low: float = ...,
        high: float = ...,
        size: _Size | None = ...,
        *,
        dtype: torch.dtype,
    ) -> torch.Tensor: ...
    def uniform(
        self,
        low: float = 0.0,
        high: float = 1.0,
        size: _Size | None = None,
        *,
        dtype: torch.dtype | None = None,
    ) -> float | Floats | torch.Tensor:
        """Numbers uniform in [low, high): multiples of 2**-53, scaled; rounding may reach high.

        Not so in float32, float16 and bfloat16: what rounding to these would take out of the
        interval becomes the number of the dtype that is next to the end and inside. (Where there
        is none inside, it is the nearest.)

        Args:
            low: the lower end.
            high: the upper end, at least low.
            size: the shape of the array; None for a float.
            dtype: float64, float32, float16 or bfloat16, for a tensor.

        Returns:
            float64 [*size], or a float; with a dtype, dtype [*size] or [].

        Raises:
            ValueError: the ends are not finite, not in order or beyond the dtype, or size is
                negative.

        >>> RNG(42).uniform(2, 3, size=2)
        array([2.8665714 , 2.06436331])
        >>> RNG(42).uniform(2, 3, size=2, dtype=torch.float32)
        tensor([2.8666, 2.0644])
        """
        if not (low <= high and math.isfinite(high - low)):
            raise ValueError(
                f"{low = } and {high = } bound no interval. Remedy: pass finite low <= high"
            )
        check_dtype(dtype, FLOATS, low, high)
        shape = _shape(size)
        numbers = low + (high - low) * self._units(math.prod(shape))
        if dtype is not None:
            return _shaped(rounded_within(numbers, low, high, dtype), size)
        return float(numbers[0]) if size is None else numbers.reshape(shape)

    @overload
    def normal(self, mean: float = ..., std: float = ..., size: None = ...) -> float: ...
    @overload
    def normal(self, mean: float = ..., std: float = ..., size: _Size = ...) -> Floats: ...
    @overload
    def normal(
        self,
        mean: float = ...,
        std: float = ...,
        size: _Size | None = ...,
        *,
        dtype: torch.dtype,
    ) -> torch.Tensor: ...
    def normal(
        self,
        mean: float = 0.0,
        std: float = 1.0,
        size: _Size | None = None,
        *,
        dtype: torch.dtype | None = None,
    ) -> float | Floats | torch.Tensor:
        """Normal numbers, by the cosine half of Box and Muller's transform.

        Args:
            mean: the mean.
            std: the standard deviation, not negative.
            size: the shape of the array; None for a float.
            dtype: float64, float32, float16 or bfloat16, for a tensor.

        Returns:
            float64 [*size], or a float; with a dtype, dtype [*size] or [].

        Raises:
            ValueError: mean or std is not finite, std or size is negative, or the dtype ends less
                than 8.6 std from the mean.

        >>> RNG(42).normal(size=2).round(6)
        array([ 1.845183, -1.169438])
        >>> RNG(42).normal(size=2, dtype=torch.float16)
        tensor([ 1.8447, -1.1699], dtype=torch.float16)
        """
        if not (math.isfinite(mean) and math.isfinite(std) and std >= 0):
            raise ValueError(
                f"{mean = } and {std = } define no normal law. Remedy: pass them finite, std >= 0"
            )
        reach = _GREATEST_NORMAL * std
        check_dtype(dtype, FLOATS, mean - reach, mean + reach)
        shape = _shape(size)
        units = self._units(2 * math.prod(shape)).reshape(-1, 2)
        radius = np.sqrt(-2.0 * np.log1p(-units[:, 0]))
        numbers = mean + std * radius * np.cos(2.0 * math.pi * units[:, 1])
        if dtype is not None:
            return _shaped(torch.from_numpy(numbers).to(dtype), size)
        return float(numbers[0]) if size is None else numbers.reshape(shape)

    @overload
    def integers(self, low: int, high: int | None = ..., size: None = ...) -> int: ...
    @overload
    def integers(self, low: int, high: int | None = ..., size: _Size = ...) -> _Integers: ...
    @overload
    def integers(
        self,
        low: int,
        high: int | None = ...,
        size: _Size | None = ...,
        *,
        dtype: torch.dtype,
    ) -> torch.Tensor: ...
    def integers(
        self,
        low: int,
        high: int | None = None,
        size: _Size | None = None,
        *,
        dtype: torch.dtype | None = None,
    ) -> int | _Integers | torch.Tensor:
        """Integers uniform in [low, high), without bias; in [0, low) if high is None.

        A draw beyond the greatest multiple of ``high - low`` in 64 bits is rejected.

        Args:
            low: the least, or the end if high is None; -2**63 <= low.
            high: the end, itself excluded; low < high <= 2**63.
            size: the shape of the array; None for an int.
            dtype: of integers, for a tensor.

        Returns:
            int64 [*size], or an int; with a dtype, dtype [*size] or [].

        Raises:
            ValueError: the range is empty or not within int64 or the dtype, or size is negative.

        >>> RNG(42).integers(100, size=4)
        array([38, 42, 60,  3])
        >>> RNG(42).integers(100, size=4, dtype=torch.uint8)
        tensor([38, 42, 60,  3], dtype=torch.uint8)
        """
        first, end = (0, operator.index(low)) if high is None else map(operator.index, (low, high))
        if not -(1 << 63) <= first < end <= 1 << 63:
            raise ValueError(
                f"range({first}, {end}) is empty or beyond int64. "
                "Remedy: pass -2**63 <= low < high <= 2**63"
            )
        check_dtype(dtype, INTEGERS, first, end - 1)
        shape = _shape(size)
        span = end - first
        draws = self._accepted(math.prod(shape), (1 << 64) - 1 - (1 << 64) % span)
        if span < 1 << 64:
            draws %= np.uint64(span)
        numbers = (draws + np.uint64(first % (1 << 64))).view(np.int64)
        if dtype is not None:
            return _shaped(torch.from_numpy(numbers).to(dtype), size)
        return int(numbers[0]) if size is None else numbers.reshape(shape)

    @overload
    def coin_flip(self, probability: float = ..., size: None = ...) -> bool: ...
    @overload
    def coin_flip(self, probability: float = ..., size: _Size = ...) -> _Flips: ...
    @overload
    def coin_flip(
        self, probability: float = ..., size: _Size | None = ..., *, dtype: torch.dtype
    ) -> torch.Tensor: ...
    def coin_flip(
        self,
        probability: float = 0.5,
        size: _Size | None = None,
        *,
        dtype: torch.dtype | None = None,
    ) -> bool | _Flips | torch.Tensor:
        """True with the given probability.

        Args:
            probability: in [0, 1].
            size: the shape of the array; None for a bool.
            dtype: bool, or of integers or floats for 0 and 1, for a tensor.

        Returns:
            bool [*size], or a bool; with a dtype, dtype [*size] or [].

        Raises:
            ValueError: probability lies outside [0, 1], or size is negative.

        >>> RNG(42).coin_flip(size=4)
        array([False,  True, False, False])
        >>> RNG(42).coin_flip(size=4, dtype=torch.float32)
        tensor([0., 1., 0., 0.])
        """
        if not 0 <= probability <= 1:
            raise ValueError(f"{probability = } is no probability. Remedy: pass one in [0, 1]")
        check_dtype(dtype, FLAGS, 0, 1)
        shape = _shape(size)
        flips = self._units(math.prod(shape)) < probability
        if dtype is not None:
            return _shaped(torch.from_numpy(flips).to(dtype), size)
        return bool(flips[0]) if size is None else flips.reshape(shape)

    @overload
    def permutation(self, n: int, *, dtype: None = ...) -> _Integers: ...
    @overload
    def permutation(self, n: int, *, dtype: torch.dtype) -> torch.Tensor: ...
    def permutation(self, n: int, *, dtype: torch.dtype | None = None) -> _Integers | torch.Tensor:
        """range(n) in random order: the order in which n draws sort.

        :class:`~stateful_gpu_loader.randomness.permutation.Permutation` gives single elements
        without the list.

        Args:
            n: number of elements, not negative.
            dtype: of integers, for a tensor.

        Returns:
            int64 [n]; with a dtype, dtype [n].

        Raises:
            ValueError: n is negative, or n - 1 beyond the dtype.

        >>> RNG(42).permutation(5)
        array([1, 2, 3, 4, 0])
        >>> RNG(42).permutation(5, dtype=torch.int32)
        tensor([1, 2, 3, 4, 0], dtype=torch.int32)
        """
        (n,) = _shape(operator.index(n))
        check_dtype(dtype, INTEGERS, 0, max(n - 1, 0))
        order = np.argsort(self._draw(n), kind="stable").astype(np.int64, copy=False)
        return order if dtype is None else torch.from_numpy(order).to(dtype)


def _shape(size: _Size | None) -> tuple[int, ...]:
    if size is None:
        return (1,)
    lengths = tuple(size) if isinstance(size, Sequence) else (size,)
    shape = tuple(operator.index(length) for length in lengths)
    if any(length < 0 for length in shape):
        raise ValueError(f"{size = } has a negative length. Remedy: pass lengths of 0 or more")
    return shape


def _shaped(numbers: torch.Tensor, size: _Size | None) -> torch.Tensor:
    return numbers.reshape(() if size is None else _shape(size))
