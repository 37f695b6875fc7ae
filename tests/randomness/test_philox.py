"""Philox equals Random123's, addresses never meet, and the three global generators are seeded."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from scipy import stats

from stateful_gpu_loader.randomness.global_generators import seed_global_generators
from stateful_gpu_loader.randomness.philox import (
    MAX_WORDS,
    Stream,
    philox4x32,
    sample_seeds,
    uniforms,
    words,
)

# github.com/DEShawResearch/random123, tests/kat_vectors: counter, key and result of philox4x32_10.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip
ADDRESS = {"seed": 42, "epoch": 3, "positions": [10**12], "stream": Stream.RECIPES}


def parsed(text):
    return np.array([int(word, 16) for word in text.split()], dtype=np.uint32)


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN_ANSWERS)
def test_philox_gives_the_known_answers(counter, key, result):
    assert (philox4x32(parsed(counter), parsed(key)) == parsed(result)).all()


def test_philox_keeps_the_shape_and_takes_a_key_for_each_counter():
    counters, keys, results = (
        np.stack([parsed(answer[part]) for answer in KNOWN_ANSWERS]) for part in range(3)
    )
    assert (philox4x32(counters, keys) == results).all()
    many = np.broadcast_to(counters, (2, 5, 3, 4))
    encrypted = philox4x32(many, keys)
    assert encrypted.dtype == np.uint32
    assert (encrypted == results).all()
    alone = philox4x32(counters, keys[2])
    assert (alone[2] == results[2]).all()
    assert (philox4x32(many, keys[2])[1, 4] == alone).all()


@pytest.mark.parametrize(
    ("counter", "key", "error"),
    [
        (np.zeros(3, np.uint32), np.zeros(2, np.uint32), ValueError),
        (np.zeros(4, np.uint32), np.zeros(4, np.uint32), ValueError),
        (np.zeros(4, np.uint32), np.zeros((5, 2), np.uint32), ValueError),
        (np.zeros(4, np.int64), np.zeros(2, np.uint32), TypeError),
    ],
)
def test_philox_refuses_other_shapes_and_types(counter, key, error):
    with pytest.raises(error, match=r"philox4x32"):
        philox4x32(counter, key)


def test_words_are_philox_of_the_documented_counter():
    """Seed, epoch, position, stream and block each have their own bits."""
    position, stream, epoch = (5 << 32) + 6, 65535, 2**32 - 1
    drawn = words(-2, epoch, [0, position], stream, 10)
    key = np.array([2**32 - 2, 2**32 - 1], dtype=np.uint32)
    for block in range(3):
        counter = np.array([6, 5, (stream << 16) + block, epoch], dtype=np.uint32)
        expected = philox4x32(counter, key)[: 10 - 4 * block]
        assert (drawn[1, 4 * block : 4 * block + 4] == expected).all()


def test_words_of_a_position_do_not_depend_on_the_others():
    """Neither on the other positions nor on their number."""
    positions = np.arange(50) * 3 + 2**40
    drawn = words(42, 1, positions, Stream.RECIPES, 16)
    assert drawn.shape == (50, 16)
    assert drawn.dtype == np.uint32
    for row, position in enumerate(positions):
        for num_words in (0, 1, 4, 7, 16):
            alone = words(42, 1, [position], Stream.RECIPES, num_words)
            assert (alone == drawn[row : row + 1, :num_words]).all()
    assert words(42, 1, [], Stream.RECIPES, 16).shape == (0, 16)


def test_no_two_addresses_share_a_word_stream():
    """Blocks of 64 bits from neighbours in every direction: a single repeat would show."""
    drawn = [
        words(seed, epoch, np.arange(20), stream, 40)
        for seed in (0, 1, 2**32, -1)
        for epoch in (0, 1, 2)
        for stream in (Stream.ORDER, Stream.SAMPLE_GENERATORS, Stream.RECIPES, Stream.RECIPES + 1)
    ]
    blocks = np.ascontiguousarray(np.concatenate(drawn)).view(np.uint64)
    assert len(np.unique(blocks)) == blocks.size


def test_streams_are_frozen():
    """A number given to another purpose would change every saved stream."""
    assert {stream.name: int(stream) for stream in Stream} == {
        "ORDER": 0,
        "SAMPLE_GENERATORS": 1,
        "COLLATE": 2,
        "ITERABLE": 3,
        "BATCH_TRANSFORM": 4,
        "GETITEMS": 5,
        "SAMPLER": 6,
        "WEIGHTED": 7,
        "MIXTURE": 8,
        "SHARDS": 9,
        "REPLACEMENT": 10,
        "WORKERS": 11,
        "DATAPIPES": 12,
        "BATCH_RECIPES": 13,
        "PARTS": 14,
        "CLASSES": 15,
        "RECIPES": 64,
    }


def test_golden_draws():
    assert words(42, 0, [0, 1], Stream.RECIPES, 5).tolist() == [
        [600977865, 628192230, 1851668753, 3942056813, 3193689443],
        [2931704441, 1730576629, 1917506274, 2127883526, 3539836954],
    ]
    assert words(-1, 2**32 - 1, [2**63 - 1], 65535, 4).tolist() == [
        [3903156834, 3122603876, 3837716981, 1207886860]
    ]
    assert uniforms(42, 7, [2**33], Stream.RECIPES + 1, 3).tolist() == [
        [0.1964877739083022, 0.6022765268571675, 0.515712141059339]
    ]


def test_golden_global_generators():
    seeds = sample_seeds(42, 0, [0, 1], Stream.SAMPLE_GENERATORS)
    assert seeds == [419615946516768484, 16364530283029780429]
    seed_global_generators(seeds[0])
    assert random.random() == 0.2582536023984944
    assert np.random.rand() == 0.5732938758320973
    assert torch.rand(()).item() == 0.8847676515579224


def test_uniforms_are_words_scaled_to_the_unit_interval():
    """Exactly, so that no device rounds them differently."""
    drawn = uniforms(42, 1, np.arange(1000), Stream.RECIPES, 16)
    assert drawn.dtype == np.float64
    assert drawn.shape == (1000, 16)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert (drawn * 2**32 == words(42, 1, np.arange(1000), Stream.RECIPES, 16)).all()


def test_uniforms_are_uniform():
    drawn = uniforms(1, 0, np.arange(20_000), Stream.RECIPES, 8)
    for column in drawn.T:
        counts = np.bincount((column * 100).astype(np.int64), minlength=100)
        assert stats.chisquare(counts).pvalue > 1e-4 / 8


@pytest.mark.parametrize(
    "change",
    [{"seed": 43}, {"epoch": 4}, {"stream": Stream.RECIPES + 1}, {"positions": 1}, {"seed": 2**32}],
    ids=str,
)
def test_draws_of_neighbouring_addresses_are_independent(change):
    """The joint distribution of two neighbours' draws, over 20,000 pairs and 100 cells."""
    here = {**ADDRESS, "positions": np.arange(20_000)}
    there = {**here, **change}
    if "positions" in change:
        there["positions"] = here["positions"] + change["positions"]
    one, other = (uniforms(**address, num_draws=1)[:, 0] for address in (here, there))
    cells = (one * 10).astype(np.int64) * 10 + (other * 10).astype(np.int64)
    assert stats.chisquare(np.bincount(cells, minlength=100)).pvalue > 1e-4 / 5
    assert abs(np.corrcoef(one, other)[0, 1]) < 4.5 / math.sqrt(20_000)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 2**64}, "seed = 18446744073709551616"),
        ({"seed": -(2**63) - 1}, "seed = -9223372036854775809"),
        ({"epoch": -1}, "epoch = -1"),
        ({"epoch": 2**32}, "epoch = 4294967296"),
        ({"stream": -1}, "stream = -1"),
        ({"stream": 65536}, "stream = 65536"),
        ({"num_words": -1}, "num_words = -1"),
        ({"num_words": MAX_WORDS + 1}, "num_words = 262145"),
        ({"positions": [3, -1]}, "positions .*-1 .*3"),
        ({"positions": np.array([2**63], np.uint64)}, "9223372036854775808"),
        ({"positions": [[1]]}, r"shape \(1, 1\)"),
    ],
)
def test_addresses_outside_the_counter_are_refused(change, message):
    with pytest.raises(ValueError, match=rf"{message}.*Remedy"):
        words(**{**ADDRESS, "num_words": 4, **change})


def test_addresses_at_the_ends_of_the_counter_are_drawn():
    assert words(2**64 - 1, 2**32 - 1, [2**63 - 1], 65535, 1).shape == (1, 1)
    assert words(-(2**63), 0, [0], 0, MAX_WORDS).shape == (1, MAX_WORDS)


def test_fractional_addresses_are_refused():
    with pytest.raises(TypeError, match=r"positions .*float64"):
        words(1, 0, [0.5], 0, 1)
    with pytest.raises(TypeError):
        words(1.5, 0, [0], 0, 1)


def test_seed_is_64_bits_however_it_is_written():
    assert (words(-1, 0, [0], 0, 4) == words(2**64 - 1, 0, [0], 0, 4)).all()
    assert (words(np.int64(-1), 0, [0], 0, 4) == words(np.uint64(2**64 - 1), 0, [0], 0, 4)).all()


def test_sample_seeds_are_64_bit_ints_of_their_position_alone():
    seeds = sample_seeds(42, 0, np.arange(1000), Stream.SAMPLE_GENERATORS)
    assert all(type(seed) is int and 0 <= seed < 2**64 for seed in seeds)
    assert len(set(seeds)) == 1000
    assert max(seeds) > 2**63
    assert sample_seeds(42, 0, [17], Stream.SAMPLE_GENERATORS) == seeds[17:18]
