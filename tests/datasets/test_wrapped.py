"""Splits and concatenations of sources."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, Subset

from stateful_gpu_loader import ArraySource, FolderSource, StatefulGPULoader
from stateful_gpu_loader.datasets import as_source
from tests.images import small_photographs, write_photo_folder


def test_negative_indices_of_a_subset_count_from_the_end(tmp_path: Path) -> None:
    write_photo_folder(tmp_path, num_classes=2, per_class=3)
    whole = FolderSource(tmp_path)
    subset = as_source(Subset(whole, [-1, 0, -6]))
    assert subset is not None
    assert [subset.read(i).name for i in range(3)] == [whole.read(i).name for i in (5, 0, 0)]
    for index in (6, -7):
        with pytest.raises(IndexError, match=rf"index {index}.*Subset"):
            as_source(Subset(whole, [0, index]))


def test_negative_indices_of_a_concatenation_count_from_its_end(tmp_path: Path) -> None:
    """A user's sampler may yield them, and torch's ConcatDataset takes them."""
    write_photo_folder(tmp_path, num_classes=2, per_class=2)
    files = FolderSource(tmp_path)
    arrays = [ArraySource(small_photographs(4), np.arange(start, start + 4)) for start in (0, 4)]
    for parts, expected in (([files, files], [1, 1, 0]), (arrays, [7, 3, 0])):
        whole = ConcatDataset(parts)
        for indices in ([-1, -5, -8], [7, 3, 0]):
            loader = StatefulGPULoader(whole, batch_size=1, sampler=indices)
            assert [targets.tolist() for _, targets in loader] == [[each] for each in expected]
        for index in (8, -9):
            with pytest.raises(IndexError, match=rf"index {index} .*8 samples"):
                list(StatefulGPULoader(whole, batch_size=1, sampler=[index]))
