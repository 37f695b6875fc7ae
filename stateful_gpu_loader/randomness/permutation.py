"""Keyed permutations of range(n), from position to index in O(1), for an epoch and its parts."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.randomness.philox import Stream, joined, words_of_64, words_of_seeds
from stateful_gpu_loader.records import IndexArray

ALGORITHM = "feistel"
"""Name of the permutation in fingerprints."""
VERSION = 1
"""Incremented whenever a permutation changes for any (n, seed, epoch)."""

_MIN_ROUNDS = 8
_CLOSENESS = 1 << 24
_HALF = np.uint64(32)
# The multipliers of splitmix64's finaliser, Stafford's variant 13 of MurmurHash3's.
_FIRST_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_MULTIPLIER = np.uint64(0x94D049BB133111EB)

_Words = npt.NDArray[np.uint64]


class Permutation:
    """A permutation of range(n), keyed by (seed, epoch), in constant memory and constant time.

    A generalised Feistel network (Black and Rogaway, "Ciphers with arbitrary finite domains",
    CT-RSA 2002). A value below ``rows * columns >= n`` is a row and a column, and each in turn is
    shifted by a keyed hash of the other. The few results of n or more go through the network again
    ("cycle walking").

    - *Parity.* The number of rows is even. If rows and columns were both odd, every shift would be
      an even permutation, and half of all orders would never occur.
    - *Small n.* Each pair of rounds brings the network closer to uniform by a factor of at most
      about its shorter side. The number of rounds makes the product 2**-24, and is at least 8: 48
      for n < 9, 16 for n = 100, 10 for n = 1,000, 8 from n = 4,033 on.
    - *Keys.* The round keys are Philox words of (seed, epoch, n), 64 bits a round. Neighbouring
      seeds, epochs and lengths are unrelated.

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
        num_rows, num_columns, num_rounds = _network_over(n)
        self._shape = np.array([n, num_rows, num_columns], dtype=np.uint64)
        self._keys = words_of_64(seed, epoch, [n], Stream.ORDER, num_rounds).T

    def __call__(self, positions: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """Return the indices at the given positions.

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
        return self._walk("position", positions, _encrypted)

    def inverse(self, indices: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """Return the positions of the given indices.

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
        return self._walk("index", indices, _decrypted)

    def __repr__(self) -> str:
        return f"Permutation({self.n}, seed={self.seed}, epoch={self.epoch})"

    def _walk(
        self, name: str, elements: npt.NDArray[np.integer], step: _Step
    ) -> npt.NDArray[np.int64]:
        elements = np.asarray(elements)
        if elements.dtype.kind not in "iu":
            raise TypeError(f"each {name} is a {elements.dtype}. Remedy: pass an array of int64")
        if elements.size and (elements.min() < 0 or elements.max() >= self.n):
            raise IndexError(
                f"{name} outside range({self.n}): the least is {elements.min()}, the greatest "
                f"{elements.max()}. Remedy: count from 0 within one epoch"
            )
        values = elements.astype(np.uint64).reshape(-1)
        n, num_rows, num_columns = self._shape
        mapped = _walked(step, values, n, num_rows, num_columns, self._keys, _ALONE)
        return mapped.astype(np.int64).reshape(elements.shape)


def permuted(
    values: IndexArray,
    lengths: npt.ArrayLike,
    *,
    seed: int,
    epoch: int,
    numbers: npt.ArrayLike,
    stream: int = Stream.PARTS,
) -> IndexArray:
    """Map each value by its own permutation.

    The permutations are those of :class:`Permutation`, keyed by (seed, epoch, stream, number);
    ``Permutation(n, ...)`` itself is number n of ``Stream.ORDER``. Time and memory depend only on
    the number of values, not on the number of permutations.

    Args:
        values: int64 [n], each in ``range(lengths[i])``.
        lengths: length of each permutation, 1 or more; int64 [n] or one int.
        numbers: number of each permutation; int64 [n] or one int. Equal numbers need equal lengths.
        stream: a :class:`~stateful_gpu_loader.randomness.philox.Stream`.

    Returns:
        int64 [n], each in ``range(lengths[i])``.

    Raises:
        IndexError: a value is outside its range.

    >>> permuted(np.array([0, 1, 2, 0, 1, 2]), 3, seed=3, epoch=0, numbers=[1, 1, 1, 2, 2, 2])
    array([1, 0, 2, 0, 1, 2])
    """
    return _mapped(
        _encrypted, values, lengths, seed=seed, epoch=epoch, numbers=numbers, stream=stream
    )


def unpermuted(
    values: IndexArray,
    lengths: npt.ArrayLike,
    *,
    seed: int,
    epoch: int,
    numbers: npt.ArrayLike,
    stream: int = Stream.PARTS,
) -> IndexArray:
    """Invert :func:`permuted`; arguments and errors are the same.

    >>> unpermuted(np.array([1, 0, 2]), 3, seed=3, epoch=0, numbers=1)
    array([0, 1, 2])
    """
    return _mapped(
        _decrypted, values, lengths, seed=seed, epoch=epoch, numbers=numbers, stream=stream
    )


def _mapped(
    step: _Step,
    values: IndexArray,
    lengths: npt.ArrayLike,
    *,
    seed: int,
    epoch: int,
    numbers: npt.ArrayLike,
    stream: int,
) -> IndexArray:
    all_lengths = np.broadcast_to(np.asarray(lengths, dtype=np.int64), values.shape)
    all_numbers = np.broadcast_to(np.asarray(numbers, dtype=np.int64), values.shape)
    outside = np.flatnonzero((values < 0) | (values >= all_lengths))
    if outside.size:
        first = outside[0]
        raise IndexError(
            f"value {values[first]} is outside range({all_lengths[first]}). Remedy: count from 0 "
            "within one permutation"
        )
    distinct, which = distinct_of(all_lengths)
    shapes = np.array([_network_over(n) for n in distinct.tolist()], dtype=np.uint64).reshape(-1, 3)
    rounds = shapes[:, 2]
    result = np.empty(values.shape, dtype=np.int64)
    kinds = np.unique(rounds).tolist()
    for num_rounds in kinds:
        # Nearly always all have the same number of rounds, and nothing has to be selected.
        chosen = np.flatnonzero((rounds == num_rounds)[which]) if len(kinds) > 1 else slice(None)
        names, place = distinct_of(all_numbers[chosen])
        keys = words_of_64(seed, epoch, names, stream, num_rounds)
        # A property that all values share is not repeated for each value.
        shape = which[chosen] if len(distinct) > 1 else 0
        result[chosen] = _walked(
            step,
            values[chosen].astype(np.uint64),
            distinct.astype(np.uint64)[shape],
            shapes[shape, 0],
            shapes[shape, 1],
            np.ascontiguousarray(keys.T),
            place if len(names) > 1 else np.array(0),
        )
    return result


def permutations_of_seeds(n: int, seeds: list[int]) -> IndexArray:
    """Return the permutations of range(n) for many seeds, at little more than the cost of one.

    Args:
        n: 1 or more.
        seeds: each 0 <= seed < 2**64.

    Returns:
        int64 [number of seeds, n]; row i is the whole of ``Permutation(n, seed=seeds[i],
        epoch=0)``.

    >>> permutations_of_seeds(3, [1, 2]).tolist()
    [[1, 2, 0], [1, 2, 0]]
    """
    *shape, num_rounds = _network_over(n)
    end, rows, columns = np.array([n, *shape], dtype=np.uint64)
    keys = joined(words_of_seeds(seeds, 0, n, Stream.ORDER, 2 * num_rounds))
    values = np.tile(np.arange(n, dtype=np.uint64), len(seeds))
    mapped = _walked(
        _encrypted,
        values,
        end,
        rows,
        columns,
        np.ascontiguousarray(keys.T),
        np.repeat(np.arange(len(seeds)), n),
    )
    return mapped.astype(np.int64).reshape(len(seeds), n)


def distinct_of(values: IndexArray) -> tuple[IndexArray, IndexArray]:
    """Return the distinct values, and each value's number; sorted input is faster.

    >>> distinct_of(np.array([5, 5, 7]))
    (array([5, 7]), array([0, 0, 1]))
    """
    steps = np.diff(values)
    if len(values) == 0 or (steps < 0).any():
        return np.unique(values, return_inverse=True)
    is_first = np.concatenate([[True], steps > 0])
    return values[is_first], np.cumsum(is_first) - 1


@lru_cache(maxsize=4096)
def _network_over(n: int) -> tuple[int, int, int]:
    """Return rows, columns and rounds of the network over n elements."""
    num_rows = max(2, (math.isqrt(n) + 1) // 2 * 2)
    num_columns = -(-n // num_rows)
    return num_rows, num_columns, _num_rounds(min(num_rows, num_columns))


def _num_rounds(shorter_side: int) -> int:
    pairs = 1
    while max(2, shorter_side) ** pairs < _CLOSENESS:
        pairs += 1
    return max(_MIN_ROUNDS, 2 * pairs)


def _hash_below(side: _Words, round_key: _Words, end: _Words) -> _Words:
    """Hash to range(end), where end <= 2**32: multiply and keep the carry."""
    mixed: _Words = (side + round_key) * _FIRST_MULTIPLIER
    mixed ^= mixed >> _HALF
    mixed *= _SECOND_MULTIPLIER
    mixed >>= _HALF
    mixed *= end
    mixed >>= _HALF
    return mixed


_Step: TypeAlias = Callable[[_Words, _Words, _Words, _Words, IndexArray], _Words]
"""One pass through the network: ``_encrypted`` or ``_decrypted``."""

_ALONE = np.array(0)
"""Place of the only permutation among the keys."""


def _walked(
    step: _Step,
    values: _Words,
    ends: _Words,
    rows: _Words,
    columns: _Words,
    keys: _Words,
    place: IndexArray,
) -> _Words:
    """Walk each value through the network until it is below its end.

    Args:
        values: uint64 [m].
        ends, rows, columns: length of each value's permutation, and rows and columns of its
            network; uint64 [m], or one value for all.
        keys: uint64 [rounds, permutations].
        place: number of each value's permutation, int64 [m], or one number for all.
    """
    values = step(values, rows, columns, keys, place)
    outside = np.flatnonzero(values >= ends)
    while outside.size:
        own_ends, own_rows, own_columns = (
            each[outside] if each.ndim else each for each in (ends, rows, columns)
        )
        own_place = place[outside] if place.ndim else place
        again = step(values[outside], own_rows, own_columns, keys, own_place)
        values[outside] = again
        outside = outside[again >= own_ends]
    return values


# Words are unsigned, so the remainder is the smaller of the sum and the sum minus the modulus. This
# costs a tenth of `%`.
def _encrypted(
    values: _Words, rows: _Words, columns: _Words, keys: _Words, place: IndexArray
) -> _Words:
    """Send values through the network once; arguments as in ``_walked``."""
    row = values // columns
    column = values - row * columns
    for row_key, column_key in zip(keys[0::2], keys[1::2], strict=True):
        row += _hash_below(column, row_key[place], rows)
        row = np.minimum(row, row - rows)
        column += _hash_below(row, column_key[place], columns)
        column = np.minimum(column, column - columns)
    return row * columns + column


def _decrypted(
    values: _Words, rows: _Words, columns: _Words, keys: _Words, place: IndexArray
) -> _Words:
    """Undo ``_encrypted``."""
    row = values // columns
    column = values - row * columns
    for row_key, column_key in zip(keys[-2::-2], keys[::-2], strict=True):
        column -= _hash_below(row, column_key[place], columns)
        column = np.minimum(column, column + columns)
        row -= _hash_below(column, row_key[place], rows)
        row = np.minimum(row, row + rows)
    return row * columns + column
