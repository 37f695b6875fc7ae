"""Kept indices, and indices that are outdated, damaged or of another kind."""

from __future__ import annotations

import os
import stat
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from stateful_gpu_loader.datasets.storage import index_files
from stateful_gpu_loader.datasets.storage.failures import failed
from stateful_gpu_loader.datasets.storage.index_files import Index, identity_of
from tests.literals import parse_in_another_thread

cached_index: Any = partial(index_files.cached_index, check=lambda index, size: None)
"""Accepts any arrays as an index."""


class Builder:
    """Counts how often an index is built. Each index is different."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Index:
        self.times += 1
        return {"numbers": np.arange(self.times), "none": np.empty(0, dtype=np.uint8)}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    path = tmp_path / "data" / "a.bin"
    path.parent.mkdir()
    path.write_bytes(b"content")
    return path


def test_an_index_is_built_once_and_read_back(file: Path) -> None:
    """Other users can read it too: several users share a folder of tars."""
    build = Builder()
    for _ in range(3):
        index = cached_index(str(file), kind="k-1", build=build)
        assert sorted(index) == ["none", "numbers"]
        assert index["numbers"].tolist() == [0]
        assert index["none"].dtype == np.uint8
    assert build.times == 1
    assert sorted(path.name for path in file.parent.iterdir()) == [".a.bin.k-1.npz", "a.bin"]
    assert stat.S_IMODE((file.parent / ".a.bin.k-1.npz").stat().st_mode) == 0o644


def test_an_index_is_read_beside_a_thread_that_parses_literals(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a whole archive would be read again."""
    build = Builder()
    cached_index(str(file), kind="k-1", build=build)
    parsed = parse_in_another_thread(monkeypatch)
    assert cached_index(str(file), kind="k-1", build=build)["numbers"].tolist() == [0]
    assert parsed == [[1, 2]]
    assert build.times == 1


def test_another_kind_size_or_time_is_built_anew(file: Path) -> None:
    build, status = Builder(), os.stat(file)

    def times(kind: str = "k-1") -> int:
        cached_index(str(file), kind=kind, build=build)
        return build.times

    assert [times(), times("k-2")] == [1, 2]
    file.write_bytes(b"longer content")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert times() == 3
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert [times(), times()] == [4, 4]


def test_an_index_that_does_not_fit_is_neither_taken_nor_kept(file: Path) -> None:
    build, times = Builder(), []
    for fits in (True, True, False, True):
        index = cached_index(str(file), kind="k-1", build=build, fits=lambda index, fits=fits: fits)
        times.append(build.times)
    assert times == [1, 1, 2, 2]
    assert index["numbers"].tolist() == [0]


def test_a_cache_directory_is_the_only_place_if_given(file: Path, tmp_path: Path) -> None:
    """If nothing can be kept there, the index is built each time."""
    build, kept = Builder(), tmp_path / "x" / "y"
    for _ in range(2):
        cached_index(str(file), kind="k-1", build=build, cache_dir=str(kept))
    assert build.times == len(list(kept.iterdir())) == 1
    for _ in range(2):
        cached_index(str(file), kind="k-1", build=build, cache_dir=str(file))
    assert build.times == 3
    assert [path.name for path in file.parent.iterdir()] == ["a.bin"]


@pytest.mark.parametrize("url", [False, True])
def test_where_no_file_can_be_kept_beside_the_general_cache_is_used(
    file: Path, tmp_path: Path, url: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, path = Builder(), str(file)
    if url:
        path = "memory://data/b.bin"
        fsspec.filesystem("memory").pipe(path, b"content")
    else:
        # root may write anywhere, so a folder blocks the path
        (file.parent / ".a.bin.k-1.npz").mkdir()
    for _ in range(2):
        cached_index(path, kind="k-1", build=build)
    assert build.times == 1
    assert len(list((tmp_path / "home" / "stateful_gpu_loader").iterdir())) == 1
    assert not [path for path in file.parent.iterdir() if path.suffix == ".part"]


def test_an_error_of_building_is_not_hidden(file: Path) -> None:
    def fails() -> Index:
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        cached_index(str(file), kind="k-1", build=fails)
    with pytest.raises(FileNotFoundError):
        cached_index(f"{file}.absent", kind="k-1", build=fails)
    assert [path.name for path in file.parent.iterdir()] == ["a.bin"]


@pytest.mark.parametrize(
    "part",
    [np.arange(2), np.arange(1.0), np.array(5), np.array(["0"]), np.array([None])],
    ids=["longer", "of another type", "a number", "text", "objects"],
)
def test_an_index_with_another_part_is_built_anew(file: Path, part: Any) -> None:
    """Found by the fuzzer of inputs: only the header was compared."""
    build = Builder()
    cached_index(str(file), kind="k-1", build=build)
    kept = file.parent / ".a.bin.k-1.npz"
    with np.load(kept) as parts:
        np.savez(kept, **{**parts, "numbers": part})
    assert cached_index(str(file), kind="k-1", build=build)["numbers"].tolist() == [0, 1]
    with zipfile.ZipFile(kept, "a") as archive:
        archive.writestr("more", b"this is no array")
    assert cached_index(str(file), kind="k-1", build=build)["numbers"].tolist() == [0, 1, 2]


def test_many_may_build_at_the_same_time(file: Path) -> None:
    def build(_: int) -> Any:
        return cached_index(str(file), kind="k-1", build=Builder())

    with ThreadPoolExecutor(8) as pool:
        assert [index["numbers"].tolist() for index in pool.map(build, range(8))] == [[0]] * 8
    assert sorted(path.name for path in file.parent.iterdir()) == [".a.bin.k-1.npz", "a.bin"]


def test_identities_are_sizes_and_times(file: Path) -> None:
    size, mark = identity_of(str(file))
    assert (size, mark) == (7, str(os.stat(file).st_mtime_ns))
    assert identity_of(f"file://{file}")[0] == 7


def test_failures_keep_their_kind_and_gain_the_place() -> None:
    assert isinstance(failed(FileNotFoundError(2, "gone"), "a.tar", "sample 3"), FileNotFoundError)
    assert failed(OSError(5, "broken"), "a.tar", "sample 3").errno == 5
    for kind in (OSError, FileNotFoundError):
        error = failed(kind("lost"), "s3://a", "sample 3")
        assert type(error) is kind
        assert str(error) == "'s3://a': lost, sample 3"
