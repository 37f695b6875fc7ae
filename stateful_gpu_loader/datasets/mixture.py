"""MixedDataset: several map-style datasets, and in which proportions they are drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch.utils.data import ConcatDataset, IterableDataset

from stateful_gpu_loader.datasets.apportionment import Apportionment, as_integers
from stateful_gpu_loader.state.descriptions import NOTHING_KNOWN, describe, describe_dataset

EPOCHS = ("first_exhausted", "all_exhausted")
"""Names of an epoch's length, those of ``datasets.interleave_datasets``."""
LONGEST_BLOCK = 1 << 17
"""Samples: what one draw of keys serves."""


class MixedDataset(ConcatDataset[Any]):
    """Map-style datasets that are drawn in proportion to weights.

    As a dataset it is the concatenation of its parts: ``mixed[i]`` and ``len(mixed)`` are those
    of torch's ConcatDataset, and a mixture of sources is a source. The order comes from
    :class:`~stateful_gpu_loader.samplers.mixture.MixtureSampler`, which a loader uses for such a
    dataset by default: it goes through each part in the part's own order, over and over, each
    epoch from where the one before stopped. So a part larger than its share of an epoch is seen
    whole over several, and a smaller one repeats. A part may be a mixture itself.

    Args:
        datasets: the parts.
        weights: how often each is drawn, in any unit, without rounding; a part of weight 0 is
            never drawn. None: by lengths, so that every sample comes equally often.
        num_samples: an epoch's length; or ``"first_exhausted"``, the longest first epoch that
            repeats nothing; or ``"all_exhausted"``, the shortest one in which everything comes.
        block_length: positions that are shuffled among the parts at a time. A shorter block keeps
            proportions closer, see MixtureSampler; 1 keeps them closest, without chance.

    Raises:
        ValueError: there are no datasets; weights are not as many as datasets, negative, not
            finite or all zero; a dataset with a weight is empty; num_samples or block_length is
            out of range.
        TypeError: a dataset is iterable, or has no length.

    >>> web, books = range(100), range(1000, 1010)
    >>> mixed = MixedDataset([web, books], [0.75, 0.25])
    >>> len(mixed), mixed[100], mixed.num_samples
    (110, 1000, 42)
    >>> MixedDataset([web, books], [0.75, 0.25], num_samples="all_exhausted").num_samples
    133
    """

    num_samples: int
    """Samples of an epoch."""
    part_weights: list[int]
    """The weights as the least integers of the same proportions, one for each dataset."""

    def __init__(
        self,
        datasets: Iterable[Any],
        weights: Sequence[Any] | None = None,
        *,
        num_samples: int | str = "first_exhausted",
        block_length: int = 256,
    ) -> None:
        parts = list(datasets)
        _check_parts(parts)
        super().__init__(parts)
        lengths = [pass_length(part) for part in parts]
        given = lengths if weights is None else list(weights)
        if len(given) != len(parts):
            raise ValueError(
                f"{len(given)} weights for {len(parts)} datasets. Remedy: one for each"
            )
        self.part_weights = as_integers(given)
        self.drawn_parts = [d for d, weight in enumerate(self.part_weights) if weight]
        """Numbers of the datasets that have a weight."""
        for d in self.drawn_parts:
            if not lengths[d]:
                raise ValueError(
                    f"dataset {d} of {len(parts)} ({type(parts[d]).__name__}) is empty and has "
                    f"weight {given[d]}. Remedy: leave it out, or give it weight 0"
                )
        self.apportionment = Apportionment([self.part_weights[d] for d in self.drawn_parts])
        """Of the datasets that have a weight."""
        self.num_samples = _num_samples(
            num_samples, self.apportionment, [lengths[d] for d in self.drawn_parts]
        )
        self.block_length = _checked("block_length", block_length, LONGEST_BLOCK)

    def fingerprint(self) -> str:
        """Of each part what is known of its content, or else its class, and its length."""
        texts = (describe_dataset(part).text for part in self.datasets)
        return " + ".join(
            f"({describe(part) if text == NOTHING_KNOWN else text}, {len(part)})"  # type: ignore[arg-type]
            for part, text in zip(self.datasets, texts, strict=True)
        )


def pass_length(part: Any) -> int:
    """Samples of one pass over a part: an epoch of a mixture, or the whole of another dataset."""
    return part.num_samples if isinstance(part, MixedDataset) else len(part)


def _check_parts(parts: list[Any]) -> None:
    if not parts:
        raise ValueError("there are no datasets to mix. Remedy: pass one at least")
    for number, part in enumerate(parts):
        if isinstance(part, IterableDataset) or not hasattr(part, "__len__"):
            kind = "iterable" if isinstance(part, IterableDataset) else "without a length"
            raise TypeError(
                f"dataset {number} of {len(parts)} ({type(part).__name__}) is {kind}. Remedy: mix "
                "map-style datasets, which are read by index"
            )


def _num_samples(given: int | str, apportionment: Apportionment, lengths: list[int]) -> int:
    if not isinstance(given, str):
        return _checked("num_samples", given, 1 << 62)
    if given not in EPOCHS:
        raise ValueError(
            f"num_samples={given!r} names no epoch. Remedy: a number, or one of "
            f"{', '.join(map(repr, EPOCHS))}"
        )
    if given == "all_exhausted":
        return apportionment.all_exhausted(lengths)
    return apportionment.first_exhausted(lengths)


def _checked(name: str, value: int, largest: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} = {value!r} is no integer. Remedy: pass an int")
    number = value.__index__()
    if not 1 <= number <= largest:
        raise ValueError(f"{name} = {number} is outside 1 <= {name} <= {largest}")
    return number
