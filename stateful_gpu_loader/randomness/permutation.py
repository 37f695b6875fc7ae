"""The order of an epoch: a keyed permutation of range(n), from position to index in O(1)."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.randomness.philox import Stream, words

ALGORITHM = "feistel"
"""Name of the permutation in fingerprints."""
VERSION = 1
"""Raised whenever a permutation changes for any (n, seed, epoch)."""

_MIN_ROUNDS = 8
_CLOSENESS = 1 << 24
_HALF = np.uint64(32)
# The multipliers of splitmix64's finaliser, Stafford's variant 13 of MurmurHash3's.
_FIRST_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_MULTIPLIER = np.uint64(0x94D049BB133111EB)

_Words = npt.NDArray[np.uint64]


class Permutation:
    """A permutation of range(n), keyed by (seed, epoch): constant memory, constant time.

    A generalised Feistel network (Black and Rogaway, "Ciphers with arbitrary finite domains",
    CT-RSA 2002): a value below ``rows * columns >= n`` is a row and a column, each of which is
    in turn shifted by a keyed hash of the other. The few values that come out at n or beyond
    are sent through again ("cycle walking") until they fall inside, which keeps it a bijection.

    - *Parity.* The number of rows is even. Were both odd, every shift would be an even
      permutation, and so would their product: half of all orders would never occur.
    - *Small n.* Two elements of one column keep their distance until a shift by row parts them,
      so each pair of rounds brings the network closer to uniform by a factor of about its shorter
      side, no more. There are as many rounds as make that 2**-24, and at least 8: 48 for n < 9,
      16 for n = 100, 10 for n = 1,000, 8 from n = 4,033 on.
    - *Keys.* The round keys are Philox words of (seed, epoch, n), 64 bits a round. Epoch e + 1
      of one seed has nothing in common with epoch e of the next, nor 1,000 with 1,001 elements.

    Args:
        n: number of elements, 1 <= n < 2**63.
        seed: -2**63 <= seed < 2**64; taken modulo 2**64.
        epoch: 0 <= epoch < 2**32.

    Raises:
        ValueError: n, seed or epoch lies outside its range.

    >>> permutation = Permutation(10, seed=42, epoch=0)
    >>> permutation(np.arange(10))
    array([4, 0, 8, 6, 3, 5, 2, 7, 1, 9])
    >>> Permutation(10**18, seed=42, epoch=0)(np.array([10**17]))
    array([332982990687425833])
    """

    def __init__(self, n: int, *, seed: int, epoch: int) -> None:
        n = operator.index(n)
        if not 1 <= n < 1 << 63:
            raise ValueError(f"{n = } is outside 1 <= n < 2**63. Remedy: pass a dataset's length")
        self.n = n
        self.seed = seed
        self.epoch = epoch
        num_rows, num_columns, num_rounds = network_over(n)
        self._n = np.uint64(n)
        self._num_rows = np.uint64(num_rows)
        self._num_columns = np.uint64(num_columns)
        halves = words(seed, epoch, [n], Stream.ORDER, 2 * num_rounds)[0].astype(np.uint64)
        self._round_keys = (halves[0::2] << _HALF | halves[1::2]).reshape(-1, 2)

    def __call__(self, positions: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """Indices at the given positions.

        Args:
            positions: int64 of any shape, each in range(n).

        Returns:
            int64 of the same shape, each in range(n).

        Raises:
            IndexError: a position is outside range(n).
            TypeError: positions are not integers.

        >>> Permutation(10, seed=42, epoch=0)(np.array([[0, 1], [2, 3]]))
        array([[4, 0],
               [8, 6]])
        """
        return self._walk("position", positions, self._encrypt)

    def inverse(self, indices: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """Positions at which the given indices come.

        Args:
            indices: int64 of any shape, each in range(n).

        Returns:
            int64 of the same shape, each in range(n).

        Raises:
            IndexError: an index is outside range(n).
            TypeError: indices are not integers.

        >>> Permutation(10, seed=42, epoch=0).inverse(np.array([4, 0]))
        array([0, 1])
        """
        return self._walk("index", indices, self._decrypt)

    def __repr__(self) -> str:
        return f"Permutation({self.n}, seed={self.seed}, epoch={self.epoch})"

    def _walk(
        self, name: str, elements: npt.NDArray[np.integer], step: Callable[[_Words], _Words]
    ) -> npt.NDArray[np.int64]:
        elements = np.asarray(elements)
        if elements.dtype.kind not in "iu":
            raise TypeError(f"each {name} is a {elements.dtype}. Remedy: pass an array of int64")
        if elements.size and (elements.min() < 0 or elements.max() >= self.n):
            raise IndexError(
                f"{name} outside range({self.n}): the least is {elements.min()}, the greatest "
                f"{elements.max()}. Remedy: count from 0 within one epoch"
            )
        values = step(elements.astype(np.uint64).reshape(-1))
        outside = np.flatnonzero(values >= self._n)
        while outside.size:
            values[outside] = step(values[outside])
            outside = outside[values[outside] >= self._n]
        return values.astype(np.int64).reshape(elements.shape)

    # Words are unsigned: what falls below zero becomes huge, so the lesser of a sum and the sum
    # less its modulus is the remainder. It costs a tenth of `%`.
    def _encrypt(self, values: _Words) -> _Words:
        row, column = self._split(values)
        for row_key, column_key in self._round_keys:
            row += hash_below(column, row_key, self._num_rows)
            row = np.minimum(row, row - self._num_rows)
            column += hash_below(row, column_key, self._num_columns)
            column = np.minimum(column, column - self._num_columns)
        return self._joined(row, column)

    def _decrypt(self, values: _Words) -> _Words:
        row, column = self._split(values)
        for row_key, column_key in self._round_keys[::-1]:
            column -= hash_below(row, column_key, self._num_columns)
            column = np.minimum(column, column + self._num_columns)
            row -= hash_below(column, row_key, self._num_rows)
            row = np.minimum(row, row + self._num_rows)
        return self._joined(row, column)

    def _split(self, values: _Words) -> tuple[_Words, _Words]:
        row = values // self._num_columns
        return row, values - row * self._num_columns

    def _joined(self, row: _Words, column: _Words) -> _Words:
        values: _Words = row * self._num_columns + column
        return values


@lru_cache(maxsize=4096)
def network_over(n: int) -> tuple[int, int, int]:
    """Rows, columns and rounds of the network over n elements."""
    num_rows = max(2, (math.isqrt(n) + 1) // 2 * 2)
    num_columns = -(-n // num_rows)
    return num_rows, num_columns, _num_rounds(min(num_rows, num_columns))


def _num_rounds(shorter_side: int) -> int:
    pairs = 1
    while max(2, shorter_side) ** pairs < _CLOSENESS:
        pairs += 1
    return max(_MIN_ROUNDS, 2 * pairs)


def hash_below(side: _Words, round_key: np.uint64, end: np.uint64) -> _Words:
    """Hash to range(end), where end <= 2**32: multiply, and keep the carry."""
    mixed: _Words = (side + round_key) * _FIRST_MULTIPLIER
    mixed ^= mixed >> _HALF
    mixed *= _SECOND_MULTIPLIER
    mixed >>= _HALF
    mixed *= end
    mixed >>= _HALF
    return mixed
