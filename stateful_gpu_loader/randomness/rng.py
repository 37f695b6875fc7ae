"""RNG: a random number generator whose whole state is one short string."""

from __future__ import annotations

import hashlib
import math
import operator
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.randomness.philox import checked_seed, philox4x32

_STATE = re.compile(r"philox1_([0-9a-f]{16})_([0-9a-f]{16})")
_STATE_KEY = "rng"
_NUM_OFFSETS = 1 << 64
_DRAWS_PER_BLOCK = 2
_DROPPED_BITS = np.uint64(64 - 53)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_LAST_BLOCK = np.uint64(_NUM_OFFSETS // _DRAWS_PER_BLOCK - 1)

# In standard deviations: the radius of Box and Muller is at most sqrt(2 log(2**53)).
_GREATEST_NORMAL = 8.6

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_INTEGERS = (
    *(torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint64, torch.uint32, torch.uint16, torch.uint8),
)
_FLAGS = (torch.bool, *_INTEGERS, *_FLOATS)

_Size = int | Sequence[int]
_Draws = npt.NDArray[np.uint64]
_Floats = npt.NDArray[np.float64]
_Integers = npt.NDArray[np.int64]
_Flips = npt.NDArray[np.bool_]


class RNG:
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

    def __init__(self, seed: int | None = None, name: str = "") -> None:
        if seed is None:
            seed = random.getrandbits(64)
        self._key = _derived_key(checked_seed(seed), "")
        self._offset = 0
        if name:
            self._key = _derived_key(self._key, name)

    def get_state(self, *, cuda_stream: Any = None) -> str:
        """The whole state, 41 characters whatever was drawn.

        Args:
            cuda_stream: not used; DALI's Checkpoint passes it to all.

        >>> RNG(42).get_state()
        'philox1_1adeceffff50d997_0000000000000000'
        """
        return f"philox1_{self._key:016x}_{self._offset:016x}"

    def set_state(self, state: str) -> None:
        """Go on where the generator that gave this state was, whatever this one's seed.

        Raises:
            StateMismatch: the string is not such a state; nothing was changed.

        >>> rng = RNG(0)
        >>> rng.set_state(RNG(42).get_state())
        >>> rng.get_state() == RNG(42).get_state()
        True
        """
        match = _STATE.fullmatch(state) if isinstance(state, str) else None
        if match is None:
            raise StateMismatch(
                _STATE_KEY,
                saved=state,
                present=self.get_state(),
                remedy="pass what get_state() returned, philox1_<16 digits>_<16 digits>; a state "
                "of a later version needs a later stateful_gpu_loader",
            )
        self._key, self._offset = (int(digits, 16) for digits in match.groups())

    def state_dict(self) -> dict[str, str]:
        """The state under one key.

        >>> RNG(42).state_dict().keys()
        dict_keys(['rng'])
        """
        return {_STATE_KEY: self.get_state()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned.

        Raises:
            StateMismatch: it is not such a state; nothing was changed.

        >>> rng = RNG(0)
        >>> rng.load_state_dict(RNG(42).state_dict())
        >>> rng.get_state() == RNG(42).get_state()
        True
        """
        if not isinstance(state_dict, Mapping) or state_dict.keys() != {_STATE_KEY}:
            raise StateMismatch(
                _STATE_KEY,
                saved=state_dict,
                present=self.state_dict(),
                remedy="pass what state_dict() returned",
            )
        self.set_state(state_dict[_STATE_KEY])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.get_state()}>"

    def stream(self, name: str) -> RNG:
        """An independent generator, at its beginning, by name.

        It depends on this one's key alone, not on what was drawn from it, so that a new stream
        disturbs none before it.

        >>> rng = RNG(42)
        >>> rng.stream("crop").uniform() == RNG(42, "crop").uniform()
        True
        """
        child = RNG(0)
        child._key = _derived_key(self._key, name)
        return child

    @overload
    def uniform(self, low: float = ..., high: float = ..., size: None = ...) -> float: ...
    @overload
    def uniform(self, low: float = ..., high: float = ..., size: _Size = ...) -> _Floats: ...
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
    ) -> float | _Floats | torch.Tensor:
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
        _check_dtype(dtype, _FLOATS, low, high)
        shape = _shape(size)
        numbers = low + (high - low) * self._units(math.prod(shape))
        if dtype is not None:
            return _shaped(_rounded_within(numbers, low, high, dtype), size)
        return float(numbers[0]) if size is None else numbers.reshape(shape)

    @overload
    def normal(self, mean: float = ..., std: float = ..., size: None = ...) -> float: ...
    @overload
    def normal(self, mean: float = ..., std: float = ..., size: _Size = ...) -> _Floats: ...
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
    ) -> float | _Floats | torch.Tensor:
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
        _check_dtype(dtype, _FLOATS, mean - reach, mean + reach)
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
        _check_dtype(dtype, _INTEGERS, first, end - 1)
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
        _check_dtype(dtype, _FLAGS, 0, 1)
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
        _check_dtype(dtype, _INTEGERS, 0, max(n - 1, 0))
        order = np.argsort(self._draw(n), kind="stable").astype(np.int64, copy=False)
        return order if dtype is None else torch.from_numpy(order).to(dtype)

    def _draw(self, num_draws: int) -> _Draws:
        first_block, skipped = divmod(self._offset, _DRAWS_PER_BLOCK)
        num_blocks = -(-(skipped + num_draws) // _DRAWS_PER_BLOCK)
        blocks = (np.arange(num_blocks, dtype=np.uint64) + np.uint64(first_block)) & _LAST_BLOCK
        counter = np.zeros((num_blocks, 4), dtype=np.uint32)
        counter[:, 0] = blocks & _LOW
        counter[:, 1] = blocks >> _HALF
        key = np.array([self._key & 0xFFFFFFFF, self._key >> 32], dtype=np.uint32)
        words = philox4x32(counter, key).astype(np.uint64)
        draws: _Draws = (words[:, 0::2] | words[:, 1::2] << _HALF).reshape(-1)
        self._offset = (self._offset + num_draws) % _NUM_OFFSETS
        return draws[skipped : skipped + num_draws]

    def _units(self, num_draws: int) -> _Floats:
        significands = self._draw(num_draws) >> _DROPPED_BITS
        units: _Floats = np.multiply(significands, 2.0**-53, dtype=np.float64)
        return units

    def _accepted(self, num_draws: int, greatest: int) -> _Draws:
        """The next draws that do not exceed the greatest, consuming those between them."""
        accepted = np.empty(0, dtype=np.uint64)
        while len(accepted) < num_draws:
            draws = self._draw(num_draws - len(accepted))
            accepted = np.concatenate([accepted, draws[draws <= np.uint64(greatest)]])
        return accepted


def _derived_key(key: int, name: str) -> int:
    """Another key of 64 bits, by name.

    >>> f"{_derived_key(42, ''):016x}"
    '1adeceffff50d997'
    """
    digest = hashlib.blake2b(
        name.encode(), key=key.to_bytes(8, "little"), digest_size=8, person=b"stateful RNG"
    )
    return int.from_bytes(digest.digest(), "little")


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


def _check_dtype(
    dtype: Any, allowed: tuple[torch.dtype, ...], least: float, greatest: float
) -> None:
    """Whether the numbers from least to greatest fit, before any is drawn.

    Args:
        dtype: a torch.dtype, or None for NumPy.
        allowed: the dtypes that make sense.
        least: of the numbers.
        greatest: of the numbers.

    Raises:
        ValueError: they do not, or it is no such dtype.

    >>> _check_dtype(torch.uint8, _INTEGERS, 0, 256)
    Traceback (most recent call last):
        ...
    ValueError: numbers from 0 to 256 do not fit into torch.uint8, which ends at 0 and 255. \
Remedy: pass a wider dtype or a narrower range
    """
    if dtype is None:
        return
    if not isinstance(dtype, torch.dtype) or dtype not in allowed:
        names = ", ".join(map(str, allowed))
        raise ValueError(f"{dtype = } is none for these numbers. Remedy: pass None or {names}")
    if dtype == torch.bool:
        return
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    if least < limits.min or greatest > limits.max:
        raise ValueError(
            f"numbers from {least} to {greatest} do not fit into {dtype}, which ends at "
            f"{limits.min} and {limits.max}. Remedy: pass a wider dtype or a narrower range"
        )


def _rounded_within(
    numbers: npt.NDArray[np.float64], low: float, high: float, dtype: torch.dtype
) -> torch.Tensor:
    """Numbers of [low, high) rounded to the nearest of a dtype, and not out of the interval.

    Rounding to 8 bits would turn one in 512 numbers of [0, 1) into 1. Such a number becomes the
    greatest of the dtype below ``high``, and one below ``low`` the least that is not. If the
    interval holds no number of the dtype, they stay the nearest. In float64 nothing is rounded.

    >>> _rounded_within(np.array([0.5, 0.9999]), 0.0, 1.0, torch.bfloat16)
    tensor([0.5000, 0.9961], dtype=torch.bfloat16)
    """
    rounded = torch.from_numpy(numbers).to(dtype)
    if dtype == torch.float64:
        return rounded
    least, greatest = torch.tensor([low, high], dtype=torch.float64, device="cpu").to(dtype)
    if least.double() < low:
        least = torch.nextafter(least, torch.tensor(math.inf, dtype=dtype, device="cpu"))
    if greatest.double() >= high:
        greatest = torch.nextafter(greatest, torch.tensor(-math.inf, dtype=dtype, device="cpu"))
    return rounded.clamp(least, greatest) if least <= greatest else rounded
