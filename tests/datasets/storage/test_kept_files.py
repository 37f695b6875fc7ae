"""Kept files of every kind: permissions, trusted owners, malformed content, replaced data."""

from __future__ import annotations

import errno
import logging
import os
import resource
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from stateful_gpu_loader import (
    RNG,
    Checkpoint,
    FolderSource,
    PreparedSource,
    TarSource,
)
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets import folder as listing
from stateful_gpu_loader.datasets.storage import index_files
from stateful_gpu_loader.datasets.storage.kept_files import owners_for_folder
from tests.datasets.record_kinds import RECORDIO, TFRECORD
from tests.datasets.storage.processes import in_a_fork
from tests.datasets.tar.tar_files import photo_entries, tar_bytes, write_tar
from tests.images import write_photo_folder

STRANGER = 12345
"""Id of another user."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@dataclass
class Data:
    """Data with a kept index."""

    make: Callable[[], Any]
    path: Path
    """Path of the indexed data."""
    place: Path
    """Path of the kept index."""

    def samples(self) -> list[Any]:
        source = self.make()
        return [(source.read(i).data.tolist(), source.read(i).target) for i in range(len(source))]


def _folder(root: Path) -> Data:
    write_photo_folder(root / "photos", num_classes=2, per_class=2)
    return _kept(FolderSource, root / "photos")


def _tar(root: Path) -> Data:
    path = write_tar(root / "a.tar", photo_entries(0, 4))
    return _kept(partial(TarSource, image="jpg"), path)


def _records(kind: Any, root: Path) -> Data:
    kind.write(root / "a.records", [data for _, data in photo_entries(0, 4)[::3]])
    return _kept(kind.source, root / "a.records")


def _kept(make: Callable[[Path], Any], path: Path) -> Data:
    """Make a source, and find its kept index."""
    assert len(make(path)) == 4
    (place,) = path.parent.glob(f".{path.name}.*.npz")
    return Data(lambda: make(path), path, place)


DATA: dict[str, Callable[[Path], Data]] = {
    "folder": _folder,
    "tar": _tar,
    "tfrecord": partial(_records, TFRECORD),
    "recordio": partial(_records, RECORDIO),
}


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep listings even of few images in young folders."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(listing, "KEPT_FROM", 1)
    monkeypatch.setattr(index_files, "YOUNG", -(10**18))


@pytest.fixture(params=["folder", "tar"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Data:
    root = tmp_path / "data"
    root.mkdir()
    return DATA[request.param](root)


def arrays_of(place: Path) -> dict[str, Any]:
    with np.load(place) as file:
        return {name: file[name] for name in file.files}


def write_arrays(place: Path, arrays: dict[str, Any]) -> None:
    """Write arrays with the right checksums, like a writer that knows the format."""
    index = {name: array for name, array in arrays.items() if name not in ("header", "contents")}
    contents = np.array(index_files._contents(index))
    with open(place, "wb") as file:
        np.savez(file, header=arrays["header"], contents=contents, **index)


@pytest.mark.parametrize(("umask", "others"), [(0o077, 0), (0o027, 0o040), (0, 0o044)])
def test_kept_files_have_the_permissions_that_the_umask_leaves(
    tmp_path: Path, umask: int, others: int
) -> None:
    """Only the owner can write a kept file, even under umask 0."""

    def run() -> bool:
        torch.set_num_threads(1)
        os.umask(umask)
        for name, make in DATA.items():
            (tmp_path / name).mkdir()
            make(tmp_path / name)
        prepared = PreparedSource(FolderSource(tmp_path / "folder" / "photos"), tmp_path / "kept")
        prepared.read(0)
        checkpoint = Checkpoint()
        checkpoint.register(RNG(1), "rng")
        checkpoint.collect()
        checkpoint.save(tmp_path / "checkpoint" / "a.json")
        return True

    assert in_a_fork(run) == 0
    files = [
        *tmp_path.glob("*/.*.npz"),
        *(tmp_path / "kept").iterdir(),
        *(tmp_path / "home").rglob("*.npz"),
    ]
    assert len(files) == 4 + 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600 | others}
    mode = stat.S_IMODE((tmp_path / "checkpoint" / "a.json").stat().st_mode)
    assert mode == 0o666 & ~umask


def _first(value: int) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        changed = array.copy()
        changed.flat[0] = value
        return changed

    return change


SHAPES: dict[str, list[tuple[str, Callable[[Any], Any]]]] = {
    "tar": [
        ("members", lambda array: array[:, :2]),
        ("members", lambda array: array.astype(np.float64)),
        ("members", _first(1 << 62)),
        ("members", _first(-512)),
        ("extensions", _first(99)),
        ("extensions", lambda array: array[:-1]),
        ("starts", lambda array: array[::-1].copy()),
        ("starts", _first(-(2**63))),
        ("key_ends", lambda array: array * (1 << 40)),
        ("key_ends", lambda array: array[:1]),
        ("vocabulary", lambda array: array[:0]),
    ],
    "folder": [
        ("counts", lambda array: array * (1 << 50)),
        ("counts", lambda array: array[:1]),
        ("counts", lambda array: array[None]),
        ("counts", lambda array: array.astype("U9")),
        ("name_ends", lambda array: array[::-1].copy()),
        ("name_ends", _first(-5)),
        ("times", lambda array: array[:, :1]),
        ("names", lambda array: array[:-1]),
    ],
    "tfrecord": [
        ("offsets", lambda array: array[::-1].copy()),
        ("offsets", lambda array: array[:, None]),
        ("offsets", lambda array: array.astype(np.uint8)),
        ("offsets", lambda array: array[:0]),
        ("offsets", _first(-(2**63))),
    ],
}
"""Changes of one array of a kept index."""


@pytest.mark.parametrize("kind", list(SHAPES))
def test_an_index_of_another_shape_is_built_again(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that lacks an array."""
    data = DATA[kind](tmp_path)
    expected, arrays = data.samples(), arrays_of(data.place)
    names = sorted(arrays.keys() - {"header", "contents"})
    lacking = [{each: arrays[each] for each in arrays if each != name} for name in names]
    changed = [arrays | {name: change(arrays[name])} for name, change in SHAPES[kind]]
    for index in (*lacking, *changed):
        write_arrays(data.place, index)
        caplog.clear()
        assert data.samples() == expected
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert str(data.place) in record.getMessage()
        caplog.clear()
        assert data.samples() == expected
        assert not caplog.records, "what was built again is kept"


def test_a_listing_with_a_name_outside_of_the_folder_is_built_again(tmp_path: Path) -> None:
    data = _folder(tmp_path)
    expected, arrays = data.samples(), arrays_of(data.place)
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    ends = arrays["name_ends"].copy()
    rest = arrays["names"].tobytes()[int(ends[1]) :]
    for name in ("../secret.jpg", "/etc/passwd", "class_0/../../secret.jpg"):
        arrays["names"] = np.frombuffer(name.encode() + rest, dtype=np.uint8)
        arrays["name_ends"] = np.append(ends[:1], ends[1:] + len(name) - ends[1])
        write_arrays(data.place, arrays)
        assert data.samples() == expected


def test_two_dots_within_a_name_are_a_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_photo_folder(tmp_path / "photos", num_classes=1, per_class=1)
    (photo,) = (tmp_path / "photos").glob("*/*")
    shutil.copy(photo, photo.with_name("..a..b.jpg"))
    for _ in range(2):
        assert len(FolderSource(tmp_path / "photos")) == 2
    assert not caplog.records


def _of_a_stranger(place: Path) -> None:
    os.chown(place, STRANGER, -1)


def _writable_by_all(place: Path) -> None:
    place.chmod(0o666)


def _link(place: Path) -> None:
    place.rename(place.with_name("elsewhere"))
    place.symlink_to(place.with_name("elsewhere"))


def _pipe(place: Path) -> None:
    place.unlink()
    os.mkfifo(place)


UNTRUSTED = [pytest.param(_of_a_stranger, marks=needs_root), _writable_by_all, _link, _pipe]


@pytest.mark.parametrize("change", UNTRUSTED)
def test_an_index_that_is_not_trusted_is_built_again(
    data: Data, change: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Another user planted it in a folder where every user can write, like /tmp."""
    expected, arrays = data.samples(), arrays_of(data.place)
    data.path.parent.chmod(0o1777)
    if data.path.is_dir():
        names = arrays["names"].tobytes()
        arrays["names"] = np.frombuffer(names.replace(b"0.", b"1."), dtype=np.uint8)
    write_arrays(data.place, arrays)
    change(data.place)
    assert data.samples() == expected
    assert str(data.place) in caplog.records[0].getMessage()
    caplog.clear()
    assert data.samples() == expected
    assert not caplog.records, "what was built again is kept, if need be elsewhere"


@needs_root
def test_the_index_of_the_owner_of_the_data_is_read(
    data: Data, caplog: pytest.LogCaptureFixture
) -> None:
    expected = data.samples()
    for path in (data.path, data.place):
        os.chown(path, STRANGER, -1)
    before = data.place.stat()
    if not data.path.is_dir():  # chown changes the time of a folder
        assert data.samples() == expected
        assert data.place.stat().st_ino == before.st_ino
    assert not [record for record in caplog.records if "not trusted" in record.getMessage()]


def test_a_copy_with_the_same_size_and_time_is_indexed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inode differs, or the file system, so no sample of the earlier file comes."""
    data = _tar(tmp_path)
    expected, inodes = data.samples(), [data.place.stat().st_ino]
    shutil.copy2(data.path, data.path.with_name("copy"))
    os.replace(data.path.with_name("copy"), data.path)
    assert data.samples() == expected
    inodes.append(data.place.stat().st_ino)
    other = SimpleNamespace(f_fsid=os.statvfs(data.path).f_fsid + 1)
    monkeypatch.setattr(os, "statvfs", lambda path: other)
    assert data.samples() == expected
    inodes.append(data.place.stat().st_ino)
    assert inodes[0] != inodes[1] != inodes[2]


def _in_place(path: Path, content: bytes) -> None:
    """Overwrite a file, keeping its size, time and inode."""
    status = path.stat()
    assert len(content) == status.st_size
    with open(path, "r+b") as file:
        file.write(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_tar_overwritten_with_the_same_size_and_time_is_indexed_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Overwritten in its middle it is refused once.

    The sample that shows it deletes the index, so the next source is right.
    """
    data = _tar(tmp_path)
    entries = [(name.replace("000", "001"), content) for name, content in photo_entries(0, 4)]
    _in_place(data.path, tar_bytes(entries))
    assert data.make().key(0) == "photos/0010"
    assert data.make()[0][1] == 0
    (record,) = caplog.records
    assert str(data.place) in record.getMessage()
    entries = [(name.replace("0011.", "0019."), content) for name, content in entries]
    _in_place(data.path, tar_bytes(entries))
    source = data.make()
    assert source[0][1] == 0
    with pytest.raises(OSError, match="replaced since it was indexed") as caught:
        source[1]
    assert caught.value.errno == errno.ESTALE
    assert repr(str(data.place)) in str(caught.value)
    assert not data.place.exists()
    again = data.make()
    assert again.key(1) == "photos/0019"
    assert again[1][1] == 1


def test_an_index_that_cannot_be_kept_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A limit on file sizes simulates a full disk."""
    path = write_tar(tmp_path / "a.tar", photo_entries(0, 4))

    def run() -> bool:
        torch.set_num_threads(1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        for _ in range(2):
            assert len(TarSource(path, image="jpg")) == 4
        (record,) = caplog.records
        assert str(tmp_path / "home") in record.getMessage()
        return "File too large" in record.getMessage()

    assert in_a_fork(run) == 0
    assert not list(tmp_path.rglob("*.npz"))
    assert not list(tmp_path.rglob("*.part"))


@pytest.fixture
def photos(tmp_path: Path) -> FolderSource:
    write_photo_folder(tmp_path / "photos", num_classes=2, per_class=2)
    return FolderSource(tmp_path / "photos")


def test_a_full_disk_at_the_first_file_of_prepared_images_is_named(
    tmp_path: Path, photos: FolderSource
) -> None:
    """At the index, which is made first, and at the description."""
    folder = tmp_path / "kept"

    def run() -> bool:
        torch.set_num_threads(1)
        for limit in (0, 200):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            with pytest.raises(OSError, match="Remedy: make room") as caught:
                PreparedSource(photos, folder)
            assert caught.value.errno == errno.EFBIG
            assert caught.value.filename == str(folder)
        return True

    assert in_a_fork(run) == 0
    assert not list(folder.glob("*.part"))
    assert not (folder / "prepared.json").exists()
    assert len(PreparedSource(photos, folder)) == 4


PREPARED = ["prepared.json", "index.bin", "pixels-000000.bin"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *((name, _writable_by_all) for name in PREPARED),
        ("pixels-000000.bin", _link),
        ("prepared.json", _pipe),
    ],
)
def test_a_prepared_file_that_is_not_trusted_is_neither_read_nor_written(
    tmp_path: Path,
    photos: FolderSource,
    name: str,
    change: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder, recipes = tmp_path / "kept", [T.Resize((20, 30))]
    first = PreparedSource(photos, folder, recipes)
    expected = first.read(0).data.tolist()
    change(folder / name)
    contents = [path.read_bytes() for path in sorted(folder.iterdir()) if not path.is_fifo()]
    if name == "pixels-000000.bin":
        source = PreparedSource(photos, folder, recipes)
        assert source.read(0).data.tolist() == expected
        assert "not trusted" in caplog.text
    else:
        with pytest.raises(PermissionError, match=r"not trusted: .*Remedy") as caught:
            PreparedSource(photos, folder, recipes)
        assert caught.value.filename == str(folder / name)
    assert contents == [path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()]


def test_a_folder_that_is_begun_is_not_cut(tmp_path: Path, photos: FolderSource) -> None:
    """A process may not yet see that another one has begun the folder.

    An index that is a link is not followed: its target is neither cut nor extended.
    """
    folder, secret = tmp_path / "kept", tmp_path / "secret"
    folder.mkdir()
    secret.write_bytes(b"keep this")
    for name in PREPARED[1:]:
        (folder / name).symlink_to(secret)
    with pytest.raises(PermissionError, match="it is a link"):
        PreparedSource(photos, folder)
    (folder / "index.bin").unlink()
    PreparedSource(photos, folder).read(3)
    assert secret.read_bytes() == b"keep this"
    (folder / PREPARED[2]).unlink()
    PreparedSource(photos, folder).read(3)
    description = (folder / "prepared.json").read_text()
    (folder / "prepared.json").unlink()
    write_photo_folder(tmp_path / "other", num_classes=1, per_class=1)
    PreparedSource(FolderSource(tmp_path / "other"), folder)
    (folder / "prepared.json").write_text(description)
    assert PreparedSource(photos, folder).is_kept(3)


@needs_root
def test_the_owner_of_a_folder_is_trusted_unless_all_can_write_above_it(tmp_path: Path) -> None:
    """Under /tmp, another user may have made the folder first."""
    folder = tmp_path / "open" / "kept"
    folder.mkdir(parents=True)
    os.chown(folder, STRANGER, -1)
    above = {path: stat.S_IMODE(path.stat().st_mode) for path in folder.parents}
    if any(mode & stat.S_IWOTH for mode in above.values()):
        assert STRANGER not in owners_for_folder(folder)
    (tmp_path / "open").chmod(0o1777)
    assert owners_for_folder(folder) == {os.geteuid(), 0}
