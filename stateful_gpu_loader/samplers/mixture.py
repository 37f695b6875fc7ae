"""MixtureSampler: the samples of a MixedDataset in the proportions of its weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from torch.utils.data import Sampler

from stateful_gpu_loader.datasets.mixture import MixedDataset, pass_length
from stateful_gpu_loader.randomness.permutation import distinct_of, permuted
from stateful_gpu_loader.randomness.philox import Stream, sample_seeds, words_of_64
from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.samplers.orders import (
    EpochOrder,
    PositionOrder,
    SequentialOrder,
    ShuffledOrder,
)
from stateful_gpu_loader.samplers.resumable import OrderSampler

ALGORITHM = "mixture-1"
"""Name and version; the version increases when any index changes."""

_NO_EPOCH = (1 << 32) - 1
"""A number that is never an epoch; its keys seed the parts."""
_MAX_PASSES = 1 << 61
"""Number of passes over all parts together after which their orders repeat."""
_PARTS_NAMED = 8
_BLOCKS_AT_ONCE = 128


class MixtureOrder:
    """Orders of all epochs of a mixture.

    An epoch is divided into blocks. :class:`~stateful_gpu_loader.datasets.mixture.Apportionment`
    counts the samples of each part in a block, whose order is random. The k-th sample of a part,
    over all epochs, is the k-th of the part's own order, in the part's own epochs. Every epoch of
    the mixture draws the same number of samples from a part, so the position in the part is a
    product and need not be stored.
    """

    def __init__(self, dataset: MixedDataset, *, shuffle: bool) -> None:
        self.dataset = dataset
        self.is_shuffled = shuffle
        self.parts = [_order_of(dataset.datasets[d], shuffle) for d in dataset.drawn_parts]
        self.algorithm = self._describe()

    @property
    def num_positions(self) -> int:
        return self.dataset.num_samples

    def of_epoch(self, seed: int, epoch: int) -> EpochOrder:
        return MixtureEpoch(self, seed, epoch)

    def _describe(self) -> str:
        dataset = self.dataset
        total = sum(dataset.part_weights)
        shares = [round(weight / total, 6) for weight in dataset.part_weights]
        lengths = [pass_length(part) for part in dataset.datasets]
        exact = (dataset.part_weights, lengths, [part.algorithm for part in self.parts])
        digest = hashlib.blake2b(repr(exact).encode(), digest_size=8).hexdigest()
        more = "" if len(lengths) <= _PARTS_NAMED else ", ..."
        return (
            f"{ALGORITHM}({'shuffled' if self.is_shuffled else 'sequential'}, "
            f"block_length={dataset.block_length}, num_samples={dataset.num_samples}, "
            f"{len(lengths)} datasets of {lengths[:_PARTS_NAMED]}{more} samples, shares "
            f"{shares[:_PARTS_NAMED]}{more}, {digest})"
        )


class MixtureEpoch:
    """One epoch of a mixture, as an EpochOrder."""

    def __init__(self, order: MixtureOrder, seed: int, epoch: int) -> None:
        dataset = order.dataset
        self.n = dataset.num_samples
        self._order, self._seed, self._epoch = order, seed, epoch
        self._block_length = dataset.block_length
        self._apportionment = dataset.apportionment
        ends = dataset.cumulative_sizes
        self._starts = _integers(ends[d - 1] if d else 0 for d in dataset.drawn_parts)
        self._lengths = _integers(part.num_positions for part in order.parts)
        # Python's ints, because late epochs of large mixtures start beyond int64.
        quotas = self._apportionment.counts(self.n)
        begun = [
            divmod(epoch * quota, part.num_positions)
            for quota, part in zip(quotas, order.parts, strict=True)
        ]
        self._most_passes = _MAX_PASSES // len(quotas)
        self._first_passes = _integers(passes % self._most_passes for passes, _ in begun)
        self._first_places = _integers(place for _, place in begun)

    def __call__(self, positions: IndexArray) -> IndexArray:
        """Map positions in ``range(n)`` to indices of the concatenation; both int64 [...]."""
        flat = np.asarray(positions, dtype=np.int64).reshape(-1)
        blocks, rows = distinct_of(flat // self._block_length)
        offsets = flat - blocks[rows] * self._block_length
        drawn, counted = np.empty_like(flat), np.empty_like(flat)
        # One of many ranks needs a few places of very many blocks.
        for first in range(0, len(blocks), _BLOCKS_AT_ONCE):
            parts, ordinals = self._blocks(blocks[first : first + _BLOCKS_AT_ONCE].tolist())
            chosen = np.flatnonzero((rows >= first) & (rows < first + _BLOCKS_AT_ONCE))
            places = rows[chosen] - first, offsets[chosen]
            drawn[chosen], counted[chosen] = parts[places], ordinals[places]
        indices: IndexArray = self._starts[drawn] + self._own_indices(drawn, counted)
        return indices.reshape(positions.shape)

    def _own_indices(self, drawn: IndexArray, counted: IndexArray) -> IndexArray:
        """Return indices in the parts.

        Args:
            drawn: part that each sample is drawn from, int64 [n].
            counted: number of samples of that part before each sample in this epoch, int64 [n].
        """
        lengths = self._lengths[drawn]
        passes, indices = np.divmod(self._first_places[drawn] + counted, lengths)
        passes = (passes + self._first_passes[drawn]) % self._most_passes
        mixtures = [d for d, part in enumerate(self._order.parts) if isinstance(part, MixtureOrder)]
        if self._order.is_shuffled:
            plain = np.flatnonzero(~np.isin(drawn, mixtures))
            indices[plain] = permuted(
                indices[plain],
                lengths[plain],
                seed=self._seed,
                epoch=0,
                numbers=passes[plain] * len(self._lengths) + drawn[plain],
            )
        for d in mixtures:
            part, seed = self._order.parts[d], self._part_seed(d)
            for number in np.unique(passes[drawn == d]).tolist():
                chosen = (drawn == d) & (passes == number)
                indices[chosen] = part.of_epoch(seed, number % _NO_EPOCH)(indices[chosen])
        return indices

    def _part_seed(self, part: int) -> int:
        """Return the seed of a part that is itself a mixture."""
        return sample_seeds(self._seed, _NO_EPOCH, [part], Stream.MIXTURE)[0]

    def _blocks(self, blocks: list[int]) -> tuple[IndexArray, IndexArray]:
        """Return the part at each place of the blocks, and the number of its samples before.

        Returns:
            Two arrays int64 [len(blocks), block_length]; entries beyond the epoch have no meaning.
        """
        length = self._block_length
        starts = [block * length for block in blocks]
        ends = [min(start + length, self.n) for start in starts]
        edges = sorted({*starts, *ends})
        counts = self._apportionment.counts_of(edges)
        first, last = (counts[np.searchsorted(edges, places)] for places in (starts, ends))
        # The rest of the epoch's last block is filled with a part that does not exist.
        lacking = length - (last - first).sum(axis=1, keepdims=True)
        quotas = np.concatenate([last - first, lacking], axis=1)
        num_parts = quotas.shape[1]
        if self._order.is_shuffled:
            parts = np.repeat(np.tile(np.arange(num_parts), len(blocks)), quotas.reshape(-1))
            parts = self._shuffled(parts.reshape(-1, length), blocks, num_parts - 1)
        else:
            parts = np.full((len(blocks), length), num_parts - 1, dtype=np.int64)
            for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
                parts[row, : end - start] = self._apportionment.between(
                    first[row].tolist(), last[row].tolist()
                )
        return parts, _ordinals(parts, np.concatenate([first, np.zeros_like(lacking)], axis=1))

    def _shuffled(self, parts: IndexArray, blocks: list[int], filler: int) -> IndexArray:
        """Shuffle each row with the keys of its block; the filler stays at the end."""
        places = np.array(blocks, dtype=np.int64)
        keys = words_of_64(self._seed, self._epoch, places, Stream.MIXTURE, self._block_length)
        keys[parts == filler] = np.iinfo(np.uint64).max
        shuffled: IndexArray = np.take_along_axis(
            parts, np.argsort(keys, axis=1, kind="stable"), axis=1
        )
        return shuffled


def _order_of(part: object, shuffle: bool) -> PositionOrder:
    if isinstance(part, MixedDataset):
        return MixtureOrder(part, shuffle=shuffle)
    return ShuffledOrder(part) if shuffle else SequentialOrder(part)  # type: ignore[arg-type]


def _integers(values: Iterable[int]) -> IndexArray:
    return np.fromiter(values, dtype=np.int64)


def _ordinals(parts: IndexArray, first: IndexArray) -> IndexArray:
    """Number the occurrences of each part in each row, starting with its ``first`` count.

    >>> _ordinals(np.array([[0, 1, 1, 0]]), np.array([[5, 20]])).tolist()
    [[5, 20, 21, 6]]
    """
    num_rows, num_parts = first.shape
    groups = (parts + np.arange(num_rows)[:, None] * num_parts).reshape(-1)
    sizes = np.bincount(groups, minlength=num_rows * num_parts)
    by_group = np.argsort(groups, kind="stable")
    ordinals: IndexArray = np.empty_like(groups)
    before = np.cumsum(sizes) - sizes
    ordinals[by_group] = np.arange(len(groups)) - np.repeat(before - first.reshape(-1), sizes)
    return ordinals.reshape(parts.shape)


class MixtureSampler(OrderSampler, Sampler[int]):
    """Yields the samples of a MixedDataset in proportion to its weights; its state is a position.

    *Bound.* Let p be the share of one of D parts with a weight, and L the ``block_length``. Among
    the first n positions of any epoch, for any n, the part appears p * n times to within ``L * p *
    (1 - p) + (1 + p * D) / 2``, or within the second term alone without shuffling. The second term
    is the bound at a block's ends, see Apportionment. With shuffling the count typically deviates
    by about ``sqrt(L * p * (1 - p)) / 2``.

    Args:
        data_source: the mixture; indices are those of its concatenation.
        shuffle: whether to shuffle each block and each part; otherwise the parts are interleaved as
            evenly as possible, each in its own order.
        seed: seed of the order; None takes the loader's seed, or 0.

    Raises:
        TypeError: the data source is not a MixedDataset.

    >>> mixed = MixedDataset([range(4), range(8)], [0.5, 0.5], num_samples=8)
    >>> sampler = MixtureSampler(mixed, shuffle=False)
    >>> list(sampler)
    [0, 4, 1, 5, 2, 6, 3, 7]
    >>> list(sampler)
    [0, 8, 1, 9, 2, 10, 3, 11]
    """

    order: MixtureOrder

    def __init__(
        self, data_source: MixedDataset, *, shuffle: bool = True, seed: int | None = None
    ) -> None:
        if not isinstance(data_source, MixedDataset):
            raise TypeError(
                f"{type(data_source).__name__} is not a MixedDataset. Remedy: "
                "MixtureSampler(MixedDataset(datasets, weights))"
            )
        self.order = MixtureOrder(data_source, shuffle=shuffle)
        self.seed = seed
        self.epoch = 0
