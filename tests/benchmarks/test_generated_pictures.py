"""Pictures for machines without photographs: as hard to decode, and the same every time."""

from __future__ import annotations

import doctest
from pathlib import Path

import numpy as np
import pytest

from benchmarks import generated_pictures, photographs
from benchmarks.generated_pictures import picture
from benchmarks.photographs import photograph_folder

pytest.importorskip("tqdm")


def test_amplitudes_fall_as_one_over_the_frequency() -> None:
    grey = np.asarray(picture(512, 512, seed=1).convert("L"), dtype=np.float64)
    power = np.abs(np.fft.fft2(grey)) ** 2
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(512), np.fft.fftfreq(512)))
    bands = [(0.01, 0.02), (0.02, 0.04), (0.04, 0.08), (0.08, 0.16)]
    means = [power[(frequency >= low) & (frequency < high)].mean() for low, high in bands]
    slopes = np.diff(np.log2(np.sqrt(means)))
    assert np.all(np.abs(slopes + 1) < 0.2)


def test_a_seed_gives_one_picture() -> None:
    assert np.array_equal(picture(64, 48, seed=3), picture(64, 48, seed=3))
    assert not np.array_equal(picture(64, 48, seed=3), picture(64, 48, seed=4))
    assert doctest.testmod(generated_pictures).failed == 0


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
