"""Kept listings of class folders, and changes that make them stale."""

from __future__ import annotations

import os
import pickle
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from torchvision.datasets import ImageFolder

from stateful_gpu_loader.datasets import FolderSource
from stateful_gpu_loader.datasets import folder as listing
from stateful_gpu_loader.datasets.storage import index_files

NAMES = ("dog/rex.jpg", "cat/tom.jpg", "cat/a/b/leo.jpg", "cat/a/b/9.png", "Äpfel/日本.jpg")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Few images, whose listing is kept even though their folders are young."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(listing, "KEPT_FROM", 1)
    monkeypatch.setattr(index_files, "YOUNG", -(10**18))
    for name in NAMES:
        _write(tmp_path / "photos" / name)
    (tmp_path / "photos" / "eel").mkdir()
    return tmp_path / "photos"


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the folders that are listed, in order."""
    folders: list[str] = []

    def times(folder: str) -> tuple[int, int]:
        folders.append(Path(folder).name)
        return index_files.times_before_listing(folder)

    monkeypatch.setattr(listing, "times_before_listing", times)
    return folders


def _write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(path.name.encode())


def _source(root: Path, **options: object) -> FolderSource:
    return FolderSource(root, allow_empty=True, **options)  # type: ignore[arg-type]


def _said(source: FolderSource) -> object:
    """Return all samples of a source."""
    paths = [source.path(index) for index in range(len(source))]
    return source.classes, source.targets.tolist(), paths, source.fingerprint()


def _kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(".npz"))


def test_a_listing_is_kept_beside_the_folder_and_taken(root: Path, listed: list[str]) -> None:
    first = _source(root)
    assert sorted(listed) == ["a", "b", "cat", "dog", "eel", "photos", "Äpfel"]
    (name,) = _kept(root.parent)
    assert name.startswith(".photos.folder-2-")
    listed.clear()
    second = _source(root)
    assert not listed
    assert _said(second) == _said(first)
    assert _said(pickle.loads(pickle.dumps(second))) == _said(first)
    theirs = ImageFolder(str(root), allow_empty=True)
    assert [second.path(index) for index in range(5)] == [path for path, _ in theirs.samples]
    assert second.classes == theirs.classes


def _unpack(root: Path) -> None:
    """Unpack more of the folders' archive: tar resets their times."""
    before = os.stat(root / "dog").st_mtime_ns
    _write(root.parent / "more" / "dog" / "max.jpg")
    os.utime(root.parent / "more" / "dog", ns=(before, before))
    with tarfile.open(root.parent / "more.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(root.parent / "more" / "dog", "dog")
    with tarfile.open(root.parent / "more.tar") as tar:
        tar.extractall(root, filter="tar")
    os.utime(root / "dog", ns=(before, before))  # tarfile rounds it
    assert os.stat(root / "dog").st_mtime_ns == before


CHANGES: dict[str, Callable[[Path], object]] = {
    "a file is added": lambda root: _write(root / "cat" / "a" / "b" / "10.jpg"),
    "a file is removed": lambda root: (root / "dog" / "rex.jpg").unlink(),
    "a file is renamed": lambda root: (root / NAMES[-1]).rename(root / "Äpfel" / "中国.jpg"),
    "a class is added": lambda root: _write(root / "ape" / "1.jpg"),
    "a class is removed": lambda root: (root / "eel").rmdir(),
    "an archive is unpacked": _unpack,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_folder_is_listed_anew(root: Path, change: Callable[[Path], object]) -> None:
    before = _said(_source(root))
    assert _kept(root.parent)
    change(root)
    after = _said(_source(root))
    assert after != before
    assert after == _said(_source(root))
    for file in _kept(root.parent):
        (root.parent / file).unlink()
    assert after == _said(_source(root))


def test_a_link_that_leads_elsewhere_by_now_is_seen(root: Path) -> None:
    """The times of the link and of its folder stay the same."""
    for name in ("old", "new"):
        _write(root.parent / name / f"{name}.jpg")
    current = root.parent / "current"
    current.symlink_to(root.parent / "old")
    (root / "cow").symlink_to(current)
    assert _said(_source(root)) == _said(_source(root))
    current.unlink()
    current.symlink_to(root.parent / "new")
    source = _source(root)
    assert [source.path(index) for index in range(len(source))][3] == str(root / "cow" / "new.jpg")


def test_extensions_have_listings_of_their_own(root: Path, listed: list[str]) -> None:
    assert len(_source(root)) == 5
    for _ in range(2):
        assert len(_source(root, extensions=[".png"])) == 1
    assert len(_source(root)) == 5
    assert len(listed) == 14
    assert len(_kept(root.parent)) == 2


def test_few_images_and_young_folders_are_listed_each_time(
    root: Path, listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second change within one tick of the clock would leave the same time."""
    with monkeypatch.context() as patch:
        patch.setattr(listing, "KEPT_FROM", 6)
        _source(root)
        assert not _kept(root.parent)
    with monkeypatch.context() as patch:
        patch.setattr(index_files, "YOUNG", 3600 * 10**9)
        _source(root)
        assert not _kept(root.parent)
    assert len(listed) == 14


def test_folders_that_need_not_tell_are_listed_each_time(
    root: Path, listed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mounted object stores, whose folders never change their time."""
    _source(root)
    device = os.stat(root).st_dev
    mounts = tmp_path / "mountinfo"
    line = "21 1 {}:{} / /data rw,nosuid shared:1 - {} bucket rw,user_id=0\n"
    for kind, is_kept in (("ext4", True), ("fuse.mountpoint-s3", False), ("fuse", False)):
        mounts.write_text(line.format(os.major(device), os.minor(device), kind))
        monkeypatch.setattr(index_files, "_MOUNTS", mounts)
        listed.clear()
        _source(root)
        assert (not listed) == is_kept, kind
    monkeypatch.setattr(index_files, "_MOUNTS", tmp_path / "absent")
    listed.clear()
    _source(root)
    assert not listed


def test_a_change_while_it_is_listed_is_seen(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file was added after the folder was read and before the listing was kept."""

    def noted(names: Iterable[str]) -> npt.NDArray[np.uint8]:
        _write(root / "dog" / "late.jpg")
        return joined(names)

    joined = listing._joined
    with monkeypatch.context() as patch:
        patch.setattr(listing, "_joined", noted)
        assert len(_source(root)) == 5
    assert len(_source(root)) == 6


def test_a_given_directory_is_where_it_is_kept(root: Path, tmp_path: Path) -> None:
    """A kept listing refuses what a new one does."""
    source = _source(root, cache_dir=tmp_path / "cache")
    assert not _kept(root.parent)
    assert len(_kept(tmp_path / "cache")) == 1
    assert _said(_source(root, cache_dir=str(tmp_path / "cache"))) == _said(source)
    with pytest.raises(FileNotFoundError, match="no image in 1 of the 4 class folders"):
        FolderSource(root, cache_dir=tmp_path / "cache")
