"""Random numbers at any position: 64-bit words, integers below a bound, permutations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.randomness.permutation import hash_below, network_over
from stateful_gpu_loader.randomness.philox import Stream, words, words_of_seeds
from stateful_gpu_loader.records import IndexArray

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def words_of_64(
    seed: int, epoch: int, positions: IndexArray, stream: int, num_words: int
) -> npt.NDArray[np.uint64]:
    """Return random words of 64 bits; arguments and errors are those of ``randomness.words``.

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
    """Convert words to integers in ``range(end)``: the upper half of ``word * end``.

    The probabilities of two integers differ by at most a factor of about ``1 + end / 2**64``.

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


_Words = npt.NDArray[np.uint64]
_Step: TypeAlias = Callable[[_Words, _Words, _Words, list[_Words], IndexArray], _Words]


def permuted(
    values: IndexArray,
    lengths: npt.ArrayLike,
    *,
    seed: int,
    epoch: int,
    numbers: npt.ArrayLike,
    stream: int = Stream.PARTS,
) -> IndexArray:
    """Map each value by a permutation of its own.

    The permutations are those of :class:`~stateful_gpu_loader.randomness.permutation.Permutation`,
    keyed by (seed, epoch, stream, number): ``Permutation(n, ...)`` itself is number n of
    ``Stream.ORDER``. Time and memory depend on the number of values alone, not on that of
    permutations.

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
    """Return what :func:`permuted` maps to these values; arguments and errors are the same.

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
    shapes = np.array([network_over(n) for n in distinct.tolist()], dtype=np.uint64).reshape(-1, 3)
    rounds = shapes[:, 2]
    result = np.empty(values.shape, dtype=np.int64)
    kinds = np.unique(rounds).tolist()
    for num_rounds in kinds:
        # Nearly always all have as many rounds, and then nothing is picked out.
        chosen = np.flatnonzero((rounds == num_rounds)[which]) if len(kinds) > 1 else slice(None)
        names, place = distinct_of(all_numbers[chosen])
        keys = words_of_64(seed, epoch, names, stream, num_rounds)
        # What all values have in common is not repeated for each.
        shape = which[chosen] if len(distinct) > 1 else 0
        result[chosen] = _walked(
            step,
            values[chosen].astype(np.uint64),
            distinct.astype(np.uint64)[shape],
            shapes[shape, 0],
            shapes[shape, 1],
            list(np.ascontiguousarray(keys.T)),
            place if len(names) > 1 else np.array(0),
        )
    return result


def permutations_of_seeds(n: int, seeds: list[int]) -> IndexArray:
    """Return the permutations of range(n) under many seeds, which together cost little more.

    Args:
        n: 1 or more.
        seeds: each 0 <= seed < 2**64.

    Returns:
        int64 [number of seeds, n]; row i is ``Permutation(n, seed=seeds[i], epoch=0)`` of all.

    >>> permutations_of_seeds(3, [1, 2]).tolist()
    [[1, 2, 0], [1, 2, 0]]
    """
    rows, columns, num_rounds = network_over(n)
    halves = words_of_seeds(seeds, 0, n, Stream.ORDER, 2 * num_rounds).astype(np.uint64)
    keys = halves[:, 0::2] << _HALF | halves[:, 1::2]
    values = np.tile(np.arange(n, dtype=np.uint64), len(seeds))
    mapped = _walked(
        _encrypted,
        values,
        np.uint64(n),
        np.uint64(rows),
        np.uint64(columns),
        list(np.ascontiguousarray(keys.T)),
        np.repeat(np.arange(len(seeds)), n),
    )
    return mapped.astype(np.int64).reshape(len(seeds), n)


def distinct_of(values: IndexArray) -> tuple[IndexArray, IndexArray]:
    """Return the distinct values and which of them each is; values in order need no sorting.

    >>> distinct_of(np.array([5, 5, 7]))
    (array([5, 7]), array([0, 0, 1]))
    """
    steps = np.diff(values)
    if len(values) == 0 or (steps < 0).any():
        return np.unique(values, return_inverse=True)
    is_first = np.concatenate([[True], steps > 0])
    return values[is_first], np.cumsum(is_first) - 1


def _walked(
    step: _Step,
    values: _Words,
    ends: _Words,
    rows: _Words,
    columns: _Words,
    keys: list[_Words],
    place: IndexArray,
) -> _Words:
    """Walk each value until it is below its end.

    Args:
        ends, rows, columns: of each value, or one for all.
        keys: of each round those of all permutations.
        place: which permutation is that of each value, or of all.
    """
    values = step(values, rows, columns, keys, place)
    outside = np.flatnonzero(values >= ends)
    while outside.size:
        own_ends, own_rows, own_columns = (
            each[outside] if each.ndim else each for each in (ends, rows, columns)
        )
        own_place = place[outside] if place.ndim else place
        walked = step(values[outside], own_rows, own_columns, keys, own_place)
        values[outside] = walked
        outside = outside[walked >= own_ends]
    return values


def _encrypted(
    values: _Words, rows: _Words, columns: _Words, keys: list[_Words], place: IndexArray
) -> _Words:
    row = values // columns
    column = values - row * columns
    for row_key, column_key in zip(keys[0::2], keys[1::2], strict=True):
        row += hash_below(column, row_key[place], rows)  # type: ignore[arg-type]
        row = np.minimum(row, row - rows)
        column += hash_below(row, column_key[place], columns)  # type: ignore[arg-type]
        column = np.minimum(column, column - columns)
    joined: _Words = row * columns + column
    return joined


def _decrypted(
    values: _Words, rows: _Words, columns: _Words, keys: list[_Words], place: IndexArray
) -> _Words:
    row = values // columns
    column = values - row * columns
    for row_key, column_key in zip(keys[-2::-2], keys[::-2], strict=True):
        column -= hash_below(row, column_key[place], columns)  # type: ignore[arg-type]
        column = np.minimum(column, column + columns)
        row -= hash_below(column, row_key[place], rows)  # type: ignore[arg-type]
        row = np.minimum(row, row + rows)
    joined: _Words = row * columns + column
    return joined
