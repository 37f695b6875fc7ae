"""Integers below a bound, and the digest that names an array."""

from __future__ import annotations

import numpy as np
import pytest

from stateful_gpu_loader.randomness.philox import Stream, words
from stateful_gpu_loader.samplers.digest import digest_of
from stateful_gpu_loader.samplers.draws import below, words_of_64
from tests.samplers.statistics import assert_uniform


@pytest.mark.parametrize("end", [1, 2, 3, 10, 2**32 - 1, 2**32, 2**32 + 1, 10**18, 2**63])
def test_below_is_the_upper_half_of_the_product(end: int) -> None:
    drawn = np.random.default_rng(0).integers(2**64, size=500, dtype=np.uint64)
    drawn[:4] = 0, 2**64 - 1, 2**63, 2**32 - 1
    found = below(drawn, end)
    assert found.dtype == np.int64
    assert found.tolist() == [word * end >> 64 for word in drawn.tolist()]


def test_words_of_64_bits_join_two_words_of_32() -> None:
    positions = np.array([3, 10**12])
    halves = words(5, 6, positions, Stream.WEIGHTED, 4).tolist()
    joined = words_of_64(5, 6, positions, Stream.WEIGHTED, 2).tolist()
    assert joined == [[row[0] << 32 | row[1], row[2] << 32 | row[3]] for row in halves]


def test_integers_below_are_uniform() -> None:
    drawn = words_of_64(1, 0, np.arange(20_000), Stream.WEIGHTED, 1)[:, 0]
    assert_uniform(np.bincount(below(drawn, 37), minlength=37))


def test_a_digest_names_the_numbers_and_their_order() -> None:
    """Law 4"""
    arrays = [
        np.array([1, 2, 3]),
        np.array([1, 3, 2]),
        np.array([1, 2, 3, 0]),
        np.array([1.0, 2.0, 3.0]),
        np.array([], dtype=np.int64),
    ]
    assert len({digest_of(array) for array in arrays}) == len(arrays)
    big_endian = np.array([1, 2, 3], dtype=">i8")
    strided = np.array([1, 9, 2, 9, 3, 9])[::2]
    assert digest_of(big_endian) == digest_of(strided) == digest_of(arrays[0])
