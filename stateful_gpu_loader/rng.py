"""A random number generator whose whole state is one short string."""

from __future__ import annotations

import hashlib
import math
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.randomness import checked_seed, philox4x32

_FORMAT = re.compile(r"philox1_([0-9a-f]{16})_([0-9a-f]{16})")
_KEY = "rng"
_NUM_OFFSETS = 1 << 64

_DRAWS_PER_BLOCK = 2
_DROPPED_BITS = np.uint64(64 - 53)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_LAST_BLOCK = np.uint64(_NUM_OFFSETS // _DRAWS_PER_BLOCK - 1)

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

    Args:
        seed: -2**63 <= seed < 2**64; taken modulo 2**64. Draws have nothing in common with those
            that a loader of this seed makes.
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
    >>> restored = RNG(0)
    >>> restored.set_state(state)
    >>> bool((restored.integers(100, size=4) == following).all())
    True
    """

    def __init__(self, seed: int, name: str = "") -> None:
        self._key = _derived_key(checked_seed(seed), "")
        self._offset = 0
        if name:
            self._key = _derived_key(self._key, name)

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
    def uniform(
        self, low: float = 0.0, high: float = 1.0, size: _Size | None = None
    ) -> float | _Floats:
        """Numbers uniform in [low, high): multiples of 2**-53, scaled; rounding may reach high.

        Args:
            low: the lower end.
            high: the upper end, at least low.
            size: the shape of the array; None for a float.

        Returns:
            float64 [*size], or a float.

        Raises:
            ValueError: the ends are not finite or not in order, or size is negative.

        >>> RNG(42).uniform(2, 3, size=2)
        array([2.8665714 , 2.06436331])
        """
        if not (low <= high and math.isfinite(high - low)):
            raise ValueError(
                f"{low = } and {high = } bound no interval. Remedy: pass finite low <= high"
            )
        shape = _shape(size)
        numbers = low + (high - low) * self._units(math.prod(shape))
        return float(numbers[0]) if size is None else numbers.reshape(shape)

    @overload
    def normal(self, mean: float = ..., std: float = ..., size: None = ...) -> float: ...
    @overload
    def normal(self, mean: float = ..., std: float = ..., size: _Size = ...) -> _Floats: ...
    def normal(
        self, mean: float = 0.0, std: float = 1.0, size: _Size | None = None
    ) -> float | _Floats:
        """Normal numbers, by the cosine half of Box and Muller's transform.

        Args:
            mean: the mean.
            std: the standard deviation, not negative.
            size: the shape of the array; None for a float.

        Returns:
            float64 [*size], or a float.

        Raises:
            ValueError: mean or std is not finite, or std or size is negative.

        >>> RNG(42).normal(size=2).round(6)
        array([ 1.845183, -1.169438])
        """
        if not (math.isfinite(mean) and math.isfinite(std) and std >= 0):
            raise ValueError(
                f"{mean = } and {std = } define no normal law. Remedy: pass them finite, std >= 0"
            )
        shape = _shape(size)
        units = self._units(2 * math.prod(shape)).reshape(-1, 2)
        radius = np.sqrt(-2.0 * np.log1p(-units[:, 0]))
        numbers = mean + std * radius * np.cos(2.0 * math.pi * units[:, 1])
        return float(numbers[0]) if size is None else numbers.reshape(shape)

    @overload
    def integers(self, low: int, high: int | None = ..., size: None = ...) -> int: ...
    @overload
    def integers(self, low: int, high: int | None = ..., size: _Size = ...) -> _Integers: ...
    def integers(
        self, low: int, high: int | None = None, size: _Size | None = None
    ) -> int | _Integers:
        """Integers uniform in [low, high), without bias; in [0, low) if high is None.

        A draw beyond the greatest multiple of ``high - low`` in 64 bits is rejected.

        Args:
            low: the least, or the end if high is None; -2**63 <= low.
            high: the end, itself excluded; low < high <= 2**63.
            size: the shape of the array; None for an int.

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
        shape = _shape(size)
        span = end - first
        draws = self._accepted(math.prod(shape), (1 << 64) - 1 - (1 << 64) % span)
        if span < 1 << 64:
            draws %= np.uint64(span)
        numbers = (draws + np.uint64(first % (1 << 64))).view(np.int64)
        return int(numbers[0]) if size is None else numbers.reshape(shape)

    @overload
    def coin_flip(self, probability: float = ..., size: None = ...) -> bool: ...
    @overload
    def coin_flip(self, probability: float = ..., size: _Size = ...) -> _Flips: ...
    def coin_flip(self, probability: float = 0.5, size: _Size | None = None) -> bool | _Flips:
        """True with the given probability.

        Args:
            probability: in [0, 1].
            size: the shape of the array; None for a bool.

        Returns:
            bool [*size], or a bool.

        Raises:
            ValueError: probability lies outside [0, 1], or size is negative.

        >>> RNG(42).coin_flip(size=4)
        array([False,  True, False, False])
        """
        if not 0 <= probability <= 1:
            raise ValueError(f"{probability = } is no probability. Remedy: pass one in [0, 1]")
        shape = _shape(size)
        flips = self._units(math.prod(shape)) < probability
        return bool(flips[0]) if size is None else flips.reshape(shape)

    def permutation(self, n: int) -> _Integers:
        """range(n) in random order: the order in which n draws sort.

        `stateful_gpu_loader.order.Permutation` gives single elements without the list.

        Args:
            n: number of elements, not negative.

        Returns:
            int64 [n].

        Raises:
            ValueError: n is negative.

        >>> RNG(42).permutation(5)
        array([1, 2, 3, 4, 0])
        """
        (n,) = _shape(operator.index(n))
        return np.argsort(self._draw(n), kind="stable").astype(np.int64, copy=False)

    def get_state(self) -> str:
        """The whole state, 41 characters whatever was drawn.

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
        >>> rng.uniform() == RNG(42).uniform()
        True
        """
        match = _FORMAT.fullmatch(state) if isinstance(state, str) else None
        if match is None:
            raise StateMismatch(
                _KEY,
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
        return {_KEY: self.get_state()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned.

        Raises:
            StateMismatch: it is not such a state; nothing was changed.

        >>> rng = RNG(0)
        >>> rng.load_state_dict(RNG(42).state_dict())
        >>> rng.get_state() == RNG(42).get_state()
        True
        """
        if not isinstance(state_dict, Mapping) or state_dict.keys() != {_KEY}:
            raise StateMismatch(
                _KEY,
                saved=state_dict,
                present=self.state_dict(),
                remedy="pass what state_dict() returned",
            )
        self.set_state(state_dict[_KEY])

    def __repr__(self) -> str:
        return f"<RNG {self.get_state()}>"

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


def _shape(size: _Size | None) -> tuple[int, ...]:
    if size is None:
        return (1,)
    lengths = tuple(size) if isinstance(size, Sequence) else (size,)
    shape = tuple(operator.index(length) for length in lengths)
    if any(length < 0 for length in shape):
        raise ValueError(f"{size = } has a negative length. Remedy: pass lengths of 0 or more")
    return shape


def _derived_key(key: int, name: str) -> int:
    digest = hashlib.blake2b(
        name.encode(), key=key.to_bytes(8, "little"), digest_size=8, person=b"stateful RNG"
    )
    return int.from_bytes(digest.digest(), "little")
