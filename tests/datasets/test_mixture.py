"""MixedDataset as a dataset: its parts, its weights and its epoch length."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, IterableDataset

from stateful_gpu_loader.datasets.mixture import MixedDataset
from tests.map_datasets import Indices


class Named(Indices):
    """A dataset with a content id."""

    def __init__(self, length: int, name: str) -> None:
        super().__init__(length)
        self.name = name

    def fingerprint(self) -> str:
        return self.name


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


def test_items_are_those_of_the_concatenation() -> None:
    """Also in a pickled copy."""
    parts: list[Any] = [range(5), range(100, 103), range(7)]
    mixed, wanted = MixedDataset(parts, [1, 0, 2]), ConcatDataset[int](parts)
    copy = pickle.loads(pickle.dumps(mixed))
    assert isinstance(mixed, ConcatDataset)
    assert [mixed[i] for i in range(len(mixed))] == [wanted[i] for i in range(len(wanted))]
    assert mixed[-1] == copy[-1] == 6
    assert copy.num_samples == mixed.num_samples
    assert copy.apportionment.counts(10**9) == mixed.apportionment.counts(10**9)


@pytest.mark.parametrize(
    ("num_samples", "wanted"),
    [("first_exhausted", 133), ("all_exhausted", 399), (1000, 1000), (1, 1)],
)
def test_an_epoch_is_as_long_as_asked_for(num_samples: int | str, wanted: int) -> None:
    """Three quarters of the first 133 are 100, within the bound; so is a quarter of 399."""
    mixed = MixedDataset([range(100), range(100)], [0.75, 0.25], num_samples=num_samples)
    assert mixed.num_samples == wanted


def test_without_weights_an_epoch_is_one_pass_over_everything() -> None:
    """A mixture counts as one epoch of it. A dataset of weight zero need not have samples."""
    for name in ("first_exhausted", "all_exhausted"):
        assert MixedDataset([range(9), range(4)], num_samples=name).num_samples == 13
    assert MixedDataset([range(9), [], range(4)]).num_samples == 13
    inner = MixedDataset([range(100), range(100)], num_samples=10)
    outer = MixedDataset([inner, range(5)])
    assert (outer.num_samples, len(outer)) == (15, 205)
    mixed = MixedDataset([range(4), [], range(8)], [1, 0, 0.5])
    assert (mixed.num_samples, mixed.drawn_parts) == (6, [0, 2])


@pytest.mark.parametrize(
    ("datasets", "options", "error", "text"),
    [
        ([], {}, ValueError, "no datasets to mix"),
        ([range(3), range(3)], {"weights": [1]}, ValueError, "1 weights for 2 datasets"),
        ([range(3), range(3)], {"weights": [1, -1]}, ValueError, "weight 1 is -1"),
        ([[], []], {}, ValueError, "none of 2 weights"),
        ([range(3), []], {"weights": [1, 0.5]}, ValueError, r"dataset 1 of 2 \(list\) is empty"),
        ([range(3), Stream()], {}, TypeError, r"dataset 1 of 2 \(Stream\) is iterable"),
        ([iter([1])], {}, TypeError, r"dataset 0 of 1 \(list_iterator\) is without a length"),
        ([range(3)], {"num_samples": 0}, ValueError, "num_samples = 0 is outside"),
        ([range(3)], {"num_samples": 1.5}, TypeError, "num_samples=1.5 must be an int"),
        ([range(3)], {"num_samples": True}, TypeError, "num_samples=True must be an int"),
        ([range(3)], {"num_samples": "exhausted"}, ValueError, "'exhausted' names no epoch"),
        ([range(3)], {"block_length": 0}, ValueError, "block_length = 0 is outside"),
        ([range(3)], {"block_length": 1 << 18}, ValueError, "block_length = 262144 is outside"),
    ],
)
def test_what_is_no_mixture_is_refused_by_name(
    datasets: list[Any], options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        MixedDataset(datasets, **options)


def test_the_fingerprint_is_that_of_all_parts() -> None:
    """A part without a content id is identified by class and length."""
    texts = {
        MixedDataset(parts).fingerprint()
        for parts in (
            [Named(3, "a"), Named(4, "b")],
            [Named(3, "a"), Named(4, "c")],
            [Named(4, "b"), Named(3, "a")],
            [Named(3, "a"), Indices(4)],
            [Named(3, "a"), Indices(5)],
        )
    }
    assert len(texts) == 5
    assert MixedDataset([Named(3, "a"), Indices(4)]).fingerprint() == (
        "(a, 3) + (tests.map_datasets.Indices, 4)"
    )
