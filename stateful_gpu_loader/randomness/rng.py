"""RNG: a random number generator whose whole state is one short string."""

from __future__ import annotations

import hashlib
import math
import operator
import random
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, cast, overload

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

# In standard deviations, at most sqrt(2 log(2**53)) by the Box-Muller transform.
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

    The generator is an endless cycle of 2**64 draws of 64 bits: draw k is one half of block k // 2
    of Philox4x32-10 under a key. Its state is the key and the number of draws consumed, so it is
    saved and set in constant time, without a seed:

        philox1_<key, 16 hexadecimal digits>_<draws consumed, 16 hexadecimal digits>

    Each number consumes its own draws, in order: one in `uniform`, `coin_flip` and `permutation`,
    two in `normal`, one in `integers` and another for each rejected draw. So an array of n numbers
    equals n single calls (each call takes about 0.1 ms). The numbers are equal on every machine,
    except for the last bits of `normal`, which depend on NumPy's logarithm and cosine.

    The drawing methods' argument ``dtype``, which returns a tensor, is deprecated.

    Args:
        seed: -2**63 <= seed < 2**64; taken modulo 2**64. The draws are unrelated to those of a
            loader with this seed. None draws a seed from Python's ``random``, like DALI's RNG. The
            state holds the key, so such a generator resumes, too.
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
        """Return the whole state, always 41 characters.

        Args:
            cuda_stream: not used; DALI's Checkpoint passes it.

        >>> RNG(42).get_state()
        'philox1_1adeceffff50d997_0000000000000000'
        """
        return f"philox1_{self._key:016x}_{self._offset:016x}"

    def set_state(self, state: str) -> None:
        """Continue from the state of another generator, regardless of this one's seed.

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
        """Return the state under one key.

        >>> RNG(42).state_dict().keys()
        dict_keys(['rng'])
        """
        return {_STATE_KEY: self.get_state()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict`.

        Raises:
            StateMismatch: this is not such a state; nothing was changed.

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
        """Return an independent generator, at its beginning, by name.

        It depends only on this generator's key, not on earlier draws.

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
    def uniform(
        self,
        low: float = 0.0,
        high: float = 1.0,
        size: _Size | None = None,
        *,
        dtype: Any = None,
    ) -> Any:
        """Draw uniform numbers in [low, high): multiples of 2**-53, scaled; rounding may reach
        high.

        Args:
            low: lower end.
            high: upper end, at least low.
            size: shape of the array; None for a float.
            dtype: deprecated.

        Returns:
            float64 [*size], or a float.

        Raises:
            ValueError: the ends are not finite or not in order, or size is negative.

        >>> RNG(42).uniform(2, 3, size=2)
        array([2.8665714 , 2.06436331])
        """
        if not (low <= high and math.isfinite(high - low)):
            raise ValueError(
                f"{low = } and {high = } do not bound an interval. Remedy: pass finite low <= high"
            )
        _check_dtype(dtype, _FLOATS, low, high)
        numbers = low + (high - low) * self._units(_count(size))
        if dtype is not None:
            numbers = _rounded_within(numbers, low, high, dtype)
        return _given(numbers, size, dtype)

    @overload
    def normal(self, mean: float = ..., std: float = ..., size: None = ...) -> float: ...
    @overload
    def normal(self, mean: float = ..., std: float = ..., size: _Size = ...) -> _Floats: ...
    def normal(
        self,
        mean: float = 0.0,
        std: float = 1.0,
        size: _Size | None = None,
        *,
        dtype: Any = None,
    ) -> Any:
        """Draw normal numbers, by the cosine half of the Box-Muller transform.

        Args:
            mean: the mean.
            std: standard deviation, not negative.
            size: shape of the array; None for a float.
            dtype: deprecated.

        Returns:
            float64 [*size], or a float.

        Raises:
            ValueError: mean or std is not finite, or std or size is negative.

        >>> RNG(42).normal(size=2).round(6)
        array([ 1.845183, -1.169438])
        """
        if not (math.isfinite(mean) and math.isfinite(std) and std >= 0):
            raise ValueError(
                f"{mean = } and {std = } define no normal distribution. Remedy: pass finite "
                "numbers, std >= 0"
            )
        reach = _GREATEST_NORMAL * std
        _check_dtype(dtype, _FLOATS, mean - reach, mean + reach)
        units = self._units(2 * _count(size)).reshape(-1, 2)
        radius = np.sqrt(-2.0 * np.log1p(-units[:, 0]))
        return _given(mean + std * radius * np.cos(2.0 * math.pi * units[:, 1]), size, dtype)

    @overload
    def integers(self, low: int, high: int | None = ..., size: None = ...) -> int: ...
    @overload
    def integers(self, low: int, high: int | None = ..., size: _Size = ...) -> _Integers: ...
    def integers(
        self,
        low: int,
        high: int | None = None,
        size: _Size | None = None,
        *,
        dtype: Any = None,
    ) -> Any:
        """Draw uniform integers in [low, high), without bias; in [0, low) if high is None.

        A draw at or beyond the greatest multiple of ``high - low`` in 64 bits is rejected.

        Args:
            low: smallest integer, or the exclusive end if high is None; -2**63 <= low.
            high: exclusive end; low < high <= 2**63.
            size: shape of the array; None for an int.
            dtype: deprecated.

        Returns:
            int64 [*size], or an int.

        Raises:
            ValueError: the range is empty or not within int64, or size is negative.

        >>> RNG(42).integers(100, size=4)
        array([38, 42, 60,  3])
        """
        first, end = (0, operator.index(low)) if high is None else map(operator.index, (low, high))
        if not -(1 << 63) <= first < end <= 1 << 63:
            raise ValueError(
                f"range({first}, {end}) is empty or beyond int64. "
                "Remedy: pass -2**63 <= low < high <= 2**63"
            )
        _check_dtype(dtype, _INTEGERS, first, end - 1)
        span = end - first
        draws = self._accepted(_count(size), (1 << 64) - 1 - (1 << 64) % span)
        if span < 1 << 64:
            draws %= np.uint64(span)
        return _given((draws + np.uint64(first % (1 << 64))).view(np.int64), size, dtype)

    @overload
    def coin_flip(self, probability: float = ..., size: None = ...) -> bool: ...
    @overload
    def coin_flip(self, probability: float = ..., size: _Size = ...) -> _Flips: ...
    def coin_flip(
        self,
        probability: float = 0.5,
        size: _Size | None = None,
        *,
        dtype: Any = None,
    ) -> Any:
        """Draw True with the given probability.

        Args:
            probability: in [0, 1].
            size: shape of the array; None for a bool.
            dtype: deprecated.

        Returns:
            bool [*size], or a bool.

        Raises:
            ValueError: probability lies outside [0, 1], or size is negative.

        >>> RNG(42).coin_flip(size=4)
        array([False,  True, False, False])
        """
        if not 0 <= probability <= 1:
            raise ValueError(
                f"{probability = } is not a probability. Remedy: pass a number in [0, 1]"
            )
        _check_dtype(dtype, _FLAGS, 0, 1)
        return _given(self._units(_count(size)) < probability, size, dtype)

    def permutation(self, n: int, *, dtype: Any = None) -> _Integers:
        """Draw a random order of range(n): the order that sorts n draws.

        :class:`~stateful_gpu_loader.randomness.permutation.Permutation` returns single elements
        without the list.

        Args:
            n: number of elements, not negative.
            dtype: deprecated.

        Returns:
            int64 [n].

        Raises:
            ValueError: n is negative.

        >>> RNG(42).permutation(5)
        array([1, 2, 3, 4, 0])
        """
        n = _count(operator.index(n))
        _check_dtype(dtype, _INTEGERS, 0, max(n - 1, 0))
        order = np.argsort(self._draw(n), kind="stable").astype(np.int64, copy=False)
        return cast(_Integers, _given(order, n, dtype))

    def _draw(self, num_draws: int) -> _Draws:
        first_block, skipped = divmod(self._offset, _DRAWS_PER_BLOCK)
        num_blocks = -(-(skipped + num_draws) // _DRAWS_PER_BLOCK)
        blocks = (np.arange(num_blocks, dtype=np.uint64) + np.uint64(first_block)) & _LAST_BLOCK
        counter = np.zeros((num_blocks, 4), dtype=np.uint32)
        counter[:, 0] = blocks & _LOW
        counter[:, 1] = blocks >> _HALF
        key = np.array([self._key & 0xFFFFFFFF, self._key >> 32], dtype=np.uint32)
        halves = philox4x32(counter, key).astype(np.uint64)
        draws: _Draws = (halves[:, 0::2] | halves[:, 1::2] << _HALF).reshape(-1)
        self._offset = (self._offset + num_draws) % _NUM_OFFSETS
        return draws[skipped : skipped + num_draws]

    def _units(self, num_draws: int) -> _Floats:
        significands = self._draw(num_draws) >> _DROPPED_BITS
        units: _Floats = np.multiply(significands, 2.0**-53, dtype=np.float64)
        return units

    def _accepted(self, num_draws: int, greatest: int) -> _Draws:
        """Return the next draws up to ``greatest``, without larger draws."""
        accepted = np.empty(0, dtype=np.uint64)
        while len(accepted) < num_draws:
            draws = self._draw(num_draws - len(accepted))
            accepted = np.concatenate([accepted, draws[draws <= np.uint64(greatest)]])
        return accepted


def _derived_key(key: int, name: str) -> int:
    """Derive another 64-bit key, by name.

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


def _count(size: _Size | None) -> int:
    """Return the number of elements of an array of this size."""
    return math.prod(_shape(size))


def _given(numbers: npt.NDArray[Any], size: _Size | None, dtype: Any) -> Any:
    """Return the numbers as an array of this size, as a Python number, or as a tensor."""
    if dtype is not None:
        return torch.from_numpy(numbers).to(dtype).reshape(() if size is None else _shape(size))
    return numbers[0].item() if size is None else numbers.reshape(_shape(size))


def _check_dtype(
    dtype: Any, allowed: tuple[torch.dtype, ...], least: float, greatest: float
) -> None:
    """Warn about the deprecated argument, and check the range before any number is drawn.

    Raises:
        ValueError: the dtype is not allowed, or cannot hold ``least`` or ``greatest``.
    """
    if dtype is None:
        return
    warnings.warn(
        "dtype= of RNG is deprecated and will be removed in 1.0. Remedy: "
        "torch.as_tensor(rng.uniform(...)).to(dtype), which makes the same numbers (rounding to "
        "less than 64 bits may reach the upper end)",
        DeprecationWarning,
        stacklevel=3,
    )
    if not isinstance(dtype, torch.dtype) or dtype not in allowed:
        names = ", ".join(map(str, allowed))
        raise ValueError(f"{dtype = } does not suit these numbers. Remedy: pass None or {names}")
    if dtype == torch.bool:
        return
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    if least < limits.min or greatest > limits.max:
        raise ValueError(
            f"numbers from {least} to {greatest} do not fit into {dtype}, which ends at "
            f"{limits.min} and {limits.max}. Remedy: pass a wider dtype or a narrower range"
        )


def _rounded_within(numbers: _Floats, low: float, high: float, dtype: torch.dtype) -> _Floats:
    """Round numbers in [low, high) to the nearest of a dtype inside the interval.

    If the interval contains no number of the dtype, the nearest ones are returned.

    >>> _rounded_within(np.array([0.5, 0.9999]), 0.0, 1.0, torch.bfloat16)
    array([0.5       , 0.99609375])
    """
    if dtype == torch.float64:
        return numbers
    rounded = torch.from_numpy(numbers).to(dtype)
    least, greatest = torch.tensor([low, high], dtype=torch.float64, device="cpu").to(dtype)
    infinity = torch.tensor(math.inf, dtype=dtype, device="cpu")
    if least.double() < low:
        least = torch.nextafter(least, infinity)
    if greatest.double() >= high:
        greatest = torch.nextafter(greatest, -infinity)
    inside = rounded.clamp(least, greatest) if least <= greatest else rounded
    return inside.double().numpy()
