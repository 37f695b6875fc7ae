"""A row of 2**64 random draws without end, whose whole state is one short string."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.randomness.philox import checked_seed, philox4x32

_FORMAT = re.compile(r"philox1_([0-9a-f]{16})_([0-9a-f]{16})")
_KEY = "rng"
_NUM_OFFSETS = 1 << 64

_DRAWS_PER_BLOCK = 2
_DROPPED_BITS = np.uint64(64 - 53)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_LAST_BLOCK = np.uint64(_NUM_OFFSETS // _DRAWS_PER_BLOCK - 1)

Draws = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]


class CountedDraws:
    """Draw k of 64 bits is one half of block k // 2 of Philox4x32-10 under a key.

    The state is the key and the number of draws consumed, and is saved and set in constant time:

        philox1_<key, 16 hexadecimal digits>_<draws consumed, 16 hexadecimal digits>

    Args:
        seed: -2**63 <= seed < 2**64; taken modulo 2**64. None draws one from Python's ``random``.
        name: derives another key from that of the seed, unless it is empty.

    Raises:
        ValueError: the seed does not fit into 64 bits.

    >>> CountedDraws(42).get_state()
    'philox1_1adeceffff50d997_0000000000000000'
    """

    def __init__(self, seed: int | None = None, name: str = "") -> None:
        if seed is None:
            seed = random.getrandbits(64)
        self._key = derived_key(checked_seed(seed), "")
        self._offset = 0
        if name:
            self._key = derived_key(self._key, name)

    def get_state(self, *, cuda_stream: Any = None) -> str:
        """The whole state, 41 characters whatever was drawn.

        Args:
            cuda_stream: not used; DALI's Checkpoint passes it to all.

        >>> CountedDraws(42).get_state()
        'philox1_1adeceffff50d997_0000000000000000'
        """
        return f"philox1_{self._key:016x}_{self._offset:016x}"

    def set_state(self, state: str) -> None:
        """Go on where the generator that gave this state was, whatever this one's seed.

        Raises:
            StateMismatch: the string is not such a state; nothing was changed.

        >>> draws = CountedDraws(0)
        >>> draws.set_state(CountedDraws(42).get_state())
        >>> draws.get_state() == CountedDraws(42).get_state()
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

        >>> CountedDraws(42).state_dict().keys()
        dict_keys(['rng'])
        """
        return {_KEY: self.get_state()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned.

        Raises:
            StateMismatch: it is not such a state; nothing was changed.

        >>> draws = CountedDraws(0)
        >>> draws.load_state_dict(CountedDraws(42).state_dict())
        >>> draws.get_state() == CountedDraws(42).get_state()
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
        return f"<{type(self).__name__} {self.get_state()}>"

    def _draw(self, num_draws: int) -> Draws:
        first_block, skipped = divmod(self._offset, _DRAWS_PER_BLOCK)
        num_blocks = -(-(skipped + num_draws) // _DRAWS_PER_BLOCK)
        blocks = (np.arange(num_blocks, dtype=np.uint64) + np.uint64(first_block)) & _LAST_BLOCK
        counter = np.zeros((num_blocks, 4), dtype=np.uint32)
        counter[:, 0] = blocks & _LOW
        counter[:, 1] = blocks >> _HALF
        key = np.array([self._key & 0xFFFFFFFF, self._key >> 32], dtype=np.uint32)
        words = philox4x32(counter, key).astype(np.uint64)
        draws: Draws = (words[:, 0::2] | words[:, 1::2] << _HALF).reshape(-1)
        self._offset = (self._offset + num_draws) % _NUM_OFFSETS
        return draws[skipped : skipped + num_draws]

    def _units(self, num_draws: int) -> Floats:
        significands = self._draw(num_draws) >> _DROPPED_BITS
        units: Floats = np.multiply(significands, 2.0**-53, dtype=np.float64)
        return units

    def _accepted(self, num_draws: int, greatest: int) -> Draws:
        """The next draws that do not exceed the greatest, consuming those between them."""
        accepted = np.empty(0, dtype=np.uint64)
        while len(accepted) < num_draws:
            draws = self._draw(num_draws - len(accepted))
            accepted = np.concatenate([accepted, draws[draws <= np.uint64(greatest)]])
        return accepted


def derived_key(key: int, name: str) -> int:
    """Another key of 64 bits, by name.

    >>> f"{derived_key(42, ''):016x}"
    '1adeceffff50d997'
    """
    digest = hashlib.blake2b(
        name.encode(), key=key.to_bytes(8, "little"), digest_size=8, person=b"stateful RNG"
    )
    return int.from_bytes(digest.digest(), "little")
