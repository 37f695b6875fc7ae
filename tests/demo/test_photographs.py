"""The demo's data set is reproducible and varied."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from PIL import Image

from examples.demo.photographs import (
    LARGEST_SIDE,
    PHOTOGRAPHS,
    SMALLEST_SIDE,
    write_photographs,
)
from stateful_gpu_loader import FolderSource, MissingDependency


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.jpg")}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    assert write_photographs(folder, files_per_class=17) == 17 * len(PHOTOGRAPHS)
    return folder


def test_the_same_arguments_write_the_same_bytes(root: Path, tmp_path: Path) -> None:
    write_photographs(tmp_path, files_per_class=17)
    assert contents(tmp_path) == contents(root)


def test_another_seed_writes_other_files(root: Path, tmp_path: Path) -> None:
    write_photographs(tmp_path, files_per_class=2, seed=1)
    assert not set(contents(tmp_path).values()) & set(contents(root).values())


def test_files_vary_in_size_and_kind(root: Path) -> None:
    sizes, modes, progressive = set(), set(), set()
    for path in root.rglob("*.jpg"):
        with Image.open(path) as image:
            sizes.add(image.size)
            modes.add(image.mode)
            progressive.add("progressive" in image.info)
    assert len(sizes) > 100
    assert all(SMALLEST_SIDE <= side <= LARGEST_SIDE for size in sizes for side in size)
    assert modes == {"L", "RGB"}
    assert progressive == {False, True}
    assert len(set(contents(root).values())) == 17 * len(PHOTOGRAPHS)


def test_a_class_is_a_photograph(root: Path) -> None:
    source = FolderSource(root)
    assert source.classes == [photograph.label for photograph in PHOTOGRAPHS]
    assert len(source) == 17 * len(PHOTOGRAPHS)


def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"scikit-image.*stateful_gpu_loader\[demo\]"):
        write_photographs(tmp_path, files_per_class=1)
