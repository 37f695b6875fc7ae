"""Negative indices of a user's sampler count from the end, as in ``dataset[-1]``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, Subset

from stateful_gpu_loader import ArraySource, FolderSource, MixedDataset, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets.prepared import PreparedSource
from tests.conformance import assert_exact_resume, same
from tests.images import small_photographs, write_photo_folder

N = 6
NEGATIVE = [-1, 0, -6, 4, -2, 5, -3]
SAME = [5, 0, 0, 4, 4, 5, 3]
RECIPES = [T.RandomCrop(12), T.RandomHorizontalFlip()]


def folder(root: Path) -> FolderSource:
    write_photo_folder(root, num_classes=2, per_class=N // 2)
    return FolderSource(root)


def arrays(n: int = N) -> ArraySource:
    return ArraySource(small_photographs(n), np.arange(n))


def prepared(root: Path) -> PreparedSource:
    return PreparedSource(folder(root / "photos"), root / "pixels", [T.Resize(16)])


SOURCES: dict[str, Callable[[Path], Any]] = {
    "FolderSource": folder,
    "ArraySource": lambda root: arrays(),
    "PreparedSource": prepared,
    "Subset": lambda root: Subset(arrays(9), [-1, 7, 0, 2, -6, 4]),
    "ConcatDataset": lambda root: ConcatDataset([arrays(2), arrays(4)]),
    "ConcatDataset of files": lambda root: ConcatDataset(
        [Subset(folder(root), [0, 1]), Subset(FolderSource(root), range(2, N))]
    ),
    "MixedDataset": lambda root: MixedDataset([arrays(4), arrays(2)]),
}


def make(dataset: Any, indices: list[int], **arguments: Any) -> StatefulGPULoader[Any]:
    given = {"sampler": indices, "batch_size": 2, "seed": 3, "transform": RECIPES, **arguments}
    return StatefulGPULoader(dataset, **given)


@pytest.mark.parametrize("name", SOURCES)
def test_the_samples_and_their_draws_are_those_of_the_same_indices(
    name: str, tmp_path: Path
) -> None:
    dataset = SOURCES[name](tmp_path)
    expected = list(make(dataset, SAME))
    assert same(list(make(dataset, NEGATIVE)), expected)
    batches = {"sampler": None, "batch_size": 1, "batch_sampler": [NEGATIVE[:4], NEGATIVE[4:]]}
    found = [target for _, targets in make(dataset, NEGATIVE, **batches) for target in targets]
    assert found == [target for _, targets in expected for target in targets]
    for index in (N, -N - 1):
        with pytest.raises(IndexError, match=rf"index {index} .*{N} samples"):
            list(make(dataset, [index]))


def test_a_transform_of_the_users_gets_the_same_images() -> None:
    loaders = [make(arrays(), indices, transform=np.asarray) for indices in (NEGATIVE, SAME)]
    assert same(*map(list, loaders))


def test_draws_are_those_of_the_batch() -> None:
    loaders = [make(arrays(), indices) for indices in (NEGATIVE, SAME)]
    for _ in zip(*loaders, strict=True):
        one, other = (loader.draws() for loader in loaders)
        assert same(one, other)


def test_the_stream_resumes() -> None:
    """The state's digest is that of the sampler's indices, for a source as for any dataset."""
    assert_exact_resume(
        lambda **changes: make(arrays(), NEGATIVE, **changes), other=({"num_workers": 2},)
    )
    digests = []
    for loader in (make(arrays(), NEGATIVE), make(range(N), NEGATIVE, transform=None)):
        next(iter(loader))
        digests.append(loader.state_dict()["index_digest"])
    assert digests[0] == digests[1]
    assert digests[0] is not None


@pytest.mark.parametrize("on_bad_sample", ["replace", "drop"])
def test_a_bad_sample_has_one_index(on_bad_sample: str, tmp_path: Path) -> None:
    source = folder(tmp_path)
    Path(source.path(N - 1)).write_bytes(b"damaged")
    loaders = [make(source, given, on_bad_sample=on_bad_sample) for given in (NEGATIVE, SAME)]
    assert same(*map(list, loaders))
    one, other = (loader.bad_samples.samples for loader in loaders)
    assert one == other
    assert [bad.index for bad in one] == [N - 1]
