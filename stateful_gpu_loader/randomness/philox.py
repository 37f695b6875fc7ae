"""Counter-based random numbers: every draw of a sample is a function of that sample's key.

Nothing here advances: Philox4x32-10 turns a key and a counter into words, and the counter is the
address of the draw,

    key     = seed                                                        64 bits
    counter = (position low, position high, stream << 16 | block, epoch)  4 x 32 bits

For user code the process's global generators are seeded from the same address.

NumPy's Philox is a different one, Philox4x64-10.
"""

from __future__ import annotations

import operator
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.records import IndexArray

NUM_STREAMS = 1 << 16
WORDS_PER_BLOCK = 4
MAX_WORDS = WORDS_PER_BLOCK << 16

_NUM_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], dtype=np.uint64)
_KEY_STEPS = np.array([0x9E3779B9, 0xBB67AE85], dtype=np.uint64)


class Stream(IntEnum):
    """Purpose of a random stream. Two streams never share a word; a value is never reused.

    Recipe i of a pipeline draws from stream ``RECIPES + i``.

    >>> Stream.RECIPES + 2
    66
    """

    ORDER = 0
    """Round keys of the epoch's permutation."""
    SAMPLE_GENERATORS = 1
    """Global generators around one ``dataset[index]`` and its transform."""
    COLLATE = 2
    """Global generators around ``collate_fn``."""
    ITERABLE = 3
    """Global generators around one fetch from a plain iterable."""
    BATCH_TRANSFORM = 4
    """Global generators around ``batch_transform``."""
    GETITEMS = 5
    """Global generators around a dataset's own ``__getitems__``."""
    SAMPLER = 6
    """Global generators around a sampler without state."""
    WEIGHTED = 7
    """Draws from an alias table."""
    MIXTURE = 8
    """Order of the datasets within a block of a mixture."""
    SHARDS = 9
    """Order of shards, and of samples within a window of a lane."""
    REPLACEMENT = 10
    """Position whose sample replaces a bad sample."""
    WORKERS = 11
    """Seeds of worker processes before they serve a pass."""
    DATAPIPES = 12
    """Seed of a DataPipe graph, the same in all workers and ranks."""
    BATCH_RECIPES = 13
    """Recipes that act on a whole batch, keyed by its first position."""
    PARTS = 14
    """Round keys of permutations of parts of an epoch: windows of blocks, rounds, classes."""
    CLASSES = 15
    """Order of the classes within a block of positions."""
    RECIPES = 64
    """First recipe of a pipeline."""


def philox4x32(
    counter: npt.NDArray[np.uint32], key: npt.NDArray[np.uint32]
) -> npt.NDArray[np.uint32]:
    """Encrypt counters with Philox4x32-10: four random words for each.

    Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11. The result
    equals Random123's ``philox4x32_R(10, counter, key)`` on any machine.

    Args:
        counter: uint32 [..., 4].
        key: uint32 [2], or [..., 2] with a shape that broadcasts against the counter's.

    Returns:
        uint32 [..., 4].

    Raises:
        ValueError: the last axis of the counter is not 4, or that of the key is not 2, or the key
            has more axes than the counter.
        TypeError: counter or key is not uint32.

    >>> zero = np.zeros(4, np.uint32)
    >>> [f"{word:08x}" for word in philox4x32(zero, zero[:2]).tolist()]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    if counter.shape[-1:] != (4,) or key.shape[-1:] != (2,) or key.ndim > counter.ndim:
        raise ValueError(
            f"philox4x32 got a counter of shape {counter.shape} and a key of shape {key.shape}. "
            "Remedy: pass uint32 [..., 4] and uint32 [2], or a key for each counter"
        )
    if counter.dtype != np.uint32 or key.dtype != np.uint32:
        raise TypeError(
            f"philox4x32 got a counter of {counter.dtype} and a key of {key.dtype}. "
            "Remedy: pass uint32 for both"
        )
    lanes = np.moveaxis(counter, -1, 0).astype(np.uint64, order="C")
    pair = (2,) + (1,) * (counter.ndim - 1)
    multipliers = _MULTIPLIERS.reshape(pair)
    first_key = np.moveaxis(key, -1, 0).astype(np.uint64)
    first_key = first_key.reshape((2,) + (1,) * (counter.ndim - key.ndim) + key.shape[:-1])
    steps = _KEY_STEPS * np.arange(_NUM_ROUNDS, dtype=np.uint64)[:, None]
    round_keys = (first_key + steps.reshape((_NUM_ROUNDS, *pair))) & _LOW
    # Lanes 0 and 2 are multiplied, lanes 1 and 3 mixed in; each pair is one array.
    multiplied, mixed = lanes[0::2], lanes[1::2]
    for round_key in round_keys:
        product = multiplied * multipliers
        multiplied = (product >> _HALF)[::-1] ^ mixed
        multiplied ^= round_key
        product &= _LOW
        mixed = product[::-1]
    encrypted = np.empty((*multiplied.shape[1:], 4), dtype=np.uint32)
    encrypted[..., 0::2] = np.moveaxis(multiplied, 0, -1)
    encrypted[..., 1::2] = np.moveaxis(mixed, 0, -1)
    return encrypted


def words(
    seed: int, epoch: int, positions: npt.ArrayLike, stream: int, num_words: int
) -> npt.NDArray[np.uint32]:
    """Draw 32-bit words for many positions at once.

    A row depends only on its own position, and its first words not on the number of words.

    Args:
        seed: -2**63 <= seed < 2**64; taken modulo 2**64.
        epoch: 0 <= epoch < 2**32.
        positions: int64 [n], none negative.
        stream: 0 <= stream < 65536, see `Stream`.
        num_words: number of words for each position, at most 262144 (65536 blocks of 4).

    Returns:
        uint32 [n, num_words].

    Raises:
        ValueError: an argument lies outside its range, or positions has another shape.
        TypeError: positions are not integers.

    >>> words(42, 0, [7, 8], Stream.RECIPES, 3)
    array([[1765498119, 1363692147,  588445865],
           [1594276841, 4008760793, 4164259178]], dtype=uint32)
    """
    seed = checked_seed(seed)
    epoch = _checked("epoch", epoch, 1 << 32, "the counter holds 32 bits of it")
    stream = _checked("stream", stream, NUM_STREAMS, "the counter holds 16 bits of it")
    num_words = _checked(
        "num_words", num_words, MAX_WORDS + 1, "draw from several streams, 65536 blocks each"
    )
    places = _checked_positions(positions)
    return _drawn(np.array([seed], dtype=np.uint64), epoch, places, stream, num_words)


def words_of_seeds(
    seeds: list[int], epoch: int, position: int, stream: int, num_words: int
) -> npt.NDArray[np.uint32]:
    """Draw the :func:`words` of one position under many seeds at once.

    Args:
        seeds: each 0 <= seed < 2**64.

    Returns:
        uint32 [number of seeds, num_words].

    >>> words_of_seeds([42, 43], 0, 7, Stream.RECIPES, 3)[0].tolist()
    [1765498119, 1363692147, 588445865]
    """
    position_alone = np.array([position], dtype=np.int64)
    return _drawn(np.array(seeds, dtype=np.uint64), epoch, position_alone, stream, num_words)


def words_of_64(
    seed: int, epoch: int, positions: npt.ArrayLike, stream: int, num_words: int
) -> npt.NDArray[np.uint64]:
    """Draw random words of 64 bits; arguments and errors are those of :func:`words`.

    Returns:
        uint64 [n, num_words].

    >>> words_of_64(42, 0, np.array([7]), Stream.WEIGHTED, 2).shape
    (1, 2)
    """
    return joined(words(seed, epoch, positions, stream, 2 * num_words))


def joined(halves: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """Join each pair of 32-bit words to a 64-bit word, the high half first.

    >>> joined(np.array([[1, 2]], dtype=np.uint32)).tolist()
    [[4294967298]]
    """
    wide = halves.astype(np.uint64)
    whole: npt.NDArray[np.uint64] = wide[:, 0::2] << _HALF | wide[:, 1::2]
    return whole


def _drawn(
    seeds: npt.NDArray[np.uint64],
    epoch: int,
    positions: npt.NDArray[np.int64],
    stream: int,
    num_words: int,
) -> npt.NDArray[np.uint32]:
    """Return a row of words for each seed or position; one of these has length 1."""
    num_rows = len(positions) if len(seeds) == 1 else len(seeds)
    num_blocks = -(-num_words // WORDS_PER_BLOCK)
    counter = np.empty((num_rows, num_blocks, 4), dtype=np.uint32)
    counter[..., 0] = (positions & 0xFFFFFFFF)[:, None]
    counter[..., 1] = (positions >> 32)[:, None]
    counter[..., 2] = np.arange(num_blocks) + (stream << 16)
    counter[..., 3] = epoch
    key = np.stack([seeds & _LOW, seeds >> _HALF], axis=-1).astype(np.uint32)
    drawn = philox4x32(counter, key[:, None]).reshape(num_rows, num_blocks * WORDS_PER_BLOCK)
    return drawn[:, :num_words]


def below(drawn: npt.NDArray[np.uint64], end: int) -> IndexArray:
    """Convert words to integers in ``range(end)``: the upper half of ``word * end``.

    Probabilities differ by at most a factor of about ``1 + end / 2**64``.

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


def uniforms(
    seed: int, epoch: int, positions: npt.ArrayLike, stream: int, num_draws: int
) -> npt.NDArray[np.float64]:
    """Draw uniform numbers in [0, 1), one word each: multiples of 2**-32.

    Arguments and errors are those of `words`.

    Returns:
        float64 [n, num_draws].

    >>> uniforms(42, 0, [7, 8], Stream.RECIPES, 2)
    array([[0.41106206, 0.31750932],
           [0.3711965 , 0.93336236]])
    """
    drawn = words(seed, epoch, positions, stream, num_draws)
    numbers: npt.NDArray[np.float64] = np.multiply(drawn, 2.0**-32, dtype=np.float64)
    return numbers


def sample_seeds(seed: int, epoch: int, positions: npt.ArrayLike, stream: int) -> list[int]:
    """Draw one seed for the global generators for each position.

    Arguments and errors are those of `words`.

    Returns:
        n ints, each 0 <= int < 2**64, for `seed_global_generators`.

    >>> sample_seeds(42, 0, [7, 8], Stream.SAMPLE_GENERATORS)
    [5816605685190428394, 18055686858541730909]
    """
    halves = words(seed, epoch, positions, stream, 2).astype(np.uint64)
    seeds: list[int] = (halves[:, 0] | halves[:, 1] << _HALF).tolist()
    return seeds


def checked_seed(seed: int) -> int:
    """Return the seed modulo 2**64, for int64 and uint64 seeds.

    Raises:
        ValueError: the seed does not fit into 64 bits.

    >>> checked_seed(-1) == checked_seed(2**64 - 1)
    True
    """
    value = operator.index(seed)
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError(
            f"seed = {value} does not fit into 64 bits. Remedy: pass -2**63 <= seed < 2**64"
        )
    return value % (1 << 64)


def _checked(name: str, value: int, end: int, remedy: str) -> int:
    value = operator.index(value)
    if not 0 <= value < end:
        raise ValueError(
            f"{name} = {value} is outside 0 <= {name} < {end}. Remedy: keep it inside: {remedy}"
        )
    return value


def _checked_positions(positions: npt.ArrayLike) -> npt.NDArray[np.int64]:
    places = np.asarray(positions)
    if places.size == 0:
        places = places.astype(np.int64)
    if places.dtype.kind not in "iu":
        raise TypeError(f"positions have dtype {places.dtype}. Remedy: pass int64 [n]")
    if places.ndim != 1:
        raise ValueError(f"positions have shape {places.shape}. Remedy: pass int64 [n]")
    if places.size and (places.min() < 0 or places.max() > np.iinfo(np.int64).max):
        raise ValueError(
            f"positions reach from {places.min()} to {places.max()}. "
            "Remedy: count them from 0, within int64"
        )
    return places.astype(np.int64, copy=False)


_SEEDS = 1024


class SeedBlock:
    """Caches the 64-bit sample seeds of one random stream, block by block.

    One call that computes seeds costs as much as 300 seeds.

    >>> seeds = SeedBlock(Stream.SAMPLER)
    >>> [seeds.at(1, 0, 5)] == sample_seeds(1, 0, np.array([5]), Stream.SAMPLER)
    True
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._key: tuple[int, int, int] | None = None
        self._seeds: list[int] = []

    def at(self, seed: int, epoch: int, position: int) -> int:
        """Return the seed of one position."""
        number, offset = divmod(position, _SEEDS)
        key = (seed, epoch, number)
        if key != self._key:
            positions = number * _SEEDS + np.arange(_SEEDS, dtype=np.int64)
            self._seeds = sample_seeds(seed, epoch, positions, self._stream)
            self._key = key
        return self._seeds[offset]

    def of(self, seed: int, epoch: int, positions: IndexArray) -> list[int]:
        """Return one seed for each position; positions are int64 [n]."""
        return [self.at(seed, epoch, position) for position in positions.tolist()]
