"""Splits and concatenations of sources."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.utils.data import Subset

from stateful_gpu_loader import FolderSource
from stateful_gpu_loader.datasets import as_source
from tests.images import write_photo_folder


def test_negative_indices_of_a_subset_count_from_the_end(tmp_path: Path) -> None:
    write_photo_folder(tmp_path, num_classes=2, per_class=3)
    whole = FolderSource(tmp_path)
    subset = as_source(Subset(whole, [-1, 0, -6]))
    assert subset is not None
    assert [subset.read(i).name for i in range(3)] == [whole.read(i).name for i in (5, 0, 0)]
    for index in (6, -7):
        with pytest.raises(IndexError, match=rf"index {index}.*Subset"):
            as_source(Subset(whole, [0, index]))
