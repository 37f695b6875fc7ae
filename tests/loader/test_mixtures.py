"""Mixtures in the loader: order, images, and refusals."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets.mixture import MixedDataset
from stateful_gpu_loader.samplers.mixture import MixtureSampler
from tests.conformance import flat, refusal, same
from tests.images import write_photo_folder
from tests.map_datasets import Indices, Noisy


def mixture(**changed: Any) -> MixedDataset:
    arguments: dict[str, Any] = {
        "datasets": [Noisy(20), Noisy(7), Noisy(3)],
        "weights": [0.6, 0.3, 0.1],
        "num_samples": 26,
        "block_length": 8,
        **changed,
    }
    return MixedDataset(**arguments)


def make(dataset: MixedDataset, /, **options: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(dataset, **{"batch_size": 4, "shuffle": True, "seed": 2, **options})


def numbered(lengths: list[int], **options: Any) -> MixedDataset:
    """Return a mixture whose samples are their places in the concatenation."""
    starts = np.cumsum([0, *lengths]).tolist()
    parts = [range(start, end) for start, end in itertools.pairwise(starts)]
    return MixedDataset(parts, **options)


def samples(loader: StatefulGPULoader[Any]) -> list[int]:
    return list(flat([batch.tolist() for batch in loader]))


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_loader_draws_a_mixture_in_its_order(shuffle: bool) -> None:
    """Without an explicit sampler, and shuffled only on request."""
    mixed = numbered([20, 7, 3], weights=[0.6, 0.3, 0.1], num_samples=26)
    loader = make(mixed, shuffle=shuffle)
    assert isinstance(loader.sampler, MixtureSampler)
    assert len(loader) == 7
    sampler = MixtureSampler(mixed, shuffle=shuffle, seed=2)
    assert [samples(loader) for _ in range(3)] == [list(sampler) for _ in range(3)]
    given: StatefulGPULoader[Any] = StatefulGPULoader(
        mixed, batch_size=4, sampler=MixtureSampler(mixed, shuffle=shuffle)
    )
    assert given.state_dict()["fingerprint"] == loader.state_dict()["fingerprint"]


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"weights": [0.6, 0.2, 0.2]}, "order"),
        ({"datasets": [range(20), range(8), range(3)]}, "dataset"),
    ],
    ids=str,
)
def test_a_state_of_another_mixture_is_refused_by_name(changed: dict[str, Any], field: str) -> None:
    datasets = {"datasets": [range(20), range(7), range(3)]}
    state = make(mixture(**datasets)).state_dict()
    refusal(make(mixture(**{**datasets, **changed})), state, field)


def test_bad_samples_are_replaced_by_others_of_the_mixture() -> None:
    class Damaged(Indices):
        def __getitem__(self, index: int) -> int:
            if index % 5 == 2:
                raise ValueError("damaged")
            return super().__getitem__(index)

    mixed = MixedDataset([Damaged(20), Damaged(7)], [0.7, 0.3], num_samples=26)
    make_loader = partial(make, mixed, on_bad_sample="replace")
    delivered = samples(make_loader())
    assert len(delivered) == 26
    assert all(index % 5 != 2 for index in delivered)


@pytest.fixture
def folders(tmp_path: Path) -> list[FolderSource]:
    for name, seed in (("web", 1), ("curated", 2)):
        write_photo_folder(tmp_path / name, num_classes=2, per_class=4 * seed, seed=seed)
    return [FolderSource(tmp_path / name) for name in ("web", "curated")]


def test_a_mixture_of_sources_is_decoded_like_a_source(folders: list[FolderSource]) -> None:
    """Image stage, recipes and threads work; a part may be a split."""
    whole: list[Any] = [folders[0], Subset(folders[1], range(3, 12))]
    mixed = MixedDataset(whole, [0.5, 0.5], num_samples=14)
    recipes = [T.RandomResizedCrop(32), T.RandomHorizontalFlip()]
    loader = make(mixed, transform=recipes)
    images, targets = next(iter(loader))
    assert images.shape == (4, 3, 32, 32)
    assert images.dtype == torch.uint8
    order = list(MixtureSampler(mixed, seed=2))
    assert targets.tolist() == [mixed[index][1] for index in order[:4]]
    by_itself = make(mixed, transform=recipes, num_workers=2)
    assert same(list(by_itself), list(make(mixed, transform=recipes)))
    assert "files, blake2b" in loader.state_dict()["fingerprint"]


def test_sources_in_other_order_are_another_dataset(folders: list[FolderSource]) -> None:
    state = make(MixedDataset(folders, [1, 1], num_samples=8)).state_dict()
    refusal(make(MixedDataset(folders[::-1], [1, 1], num_samples=8)), state, "dataset")


def test_torchs_loader_takes_mixture_and_sampler() -> None:
    """They are a dataset and a sampler for any loader."""
    mixed = numbered([20, 7], weights=[0.7, 0.3], num_samples=26)
    batches = DataLoader(mixed, batch_size=4, sampler=MixtureSampler(mixed, seed=2))
    assert list(flat([batch.tolist() for batch in batches])) == samples(make(mixed))
