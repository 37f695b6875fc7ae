"""Generated pictures are as hard to decode as photographs, and the same every time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import photographs
from benchmarks.generated_pictures import picture
from benchmarks.photographs import photograph_folder

pytest.importorskip("tqdm")


def test_a_seed_gives_one_picture() -> None:
    assert np.array_equal(picture(64, 48, seed=3), picture(64, 48, seed=3))
    assert not np.array_equal(picture(64, 48, seed=3), picture(64, 48, seed=4))


@pytest.mark.benchmarks
def test_files_of_the_usual_size_are_made_without_photographs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(photographs, "_PHOTOGRAPHS", (("no_such_package", "picture.png"),) * 2)
    folder = photograph_folder(6, tmp_path)
    assert folder.originals == "generated pictures"
    assert 100_000 < folder.mean_bytes < 130_000
    assert len(folder.files) == 6
    assert photograph_folder(6, tmp_path).files == folder.files
