"""The command ``prepare``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stateful_gpu_loader import FolderSource, PreparedSource
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.tools.prepare import prepare
from tests.cli.command import command
from tests.damaged import N, write_photos
from tests.images import write_photo_folder

PROGRAM = """
from torch.utils.data import Subset
from stateful_gpu_loader import FolderSource, PreparedSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T


def make_loader(max_bytes=None):
    head = [T.Resize((300, 400))]
    source = PreparedSource(FolderSource("photos"), "kept", head, max_bytes=max_bytes)
    return StatefulGPULoader(Subset(source, range(2)), transform=[T.RandomCrop(200)])


def make_plain():
    return StatefulGPULoader(FolderSource("photos"), transform=[T.RandomResizedCrop(200)])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_photo_folder(tmp_path / "photos", num_classes=2, per_class=4)
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


def source_in(folder: Path) -> PreparedSource:
    return PreparedSource(FolderSource(folder / "photos"), folder / "kept", [T.Resize((300, 400))])


def test_a_directory_is_filled_once(folder: Path) -> None:
    done = command("prepare", "train:make_loader", "--workers", "1", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{folder}/kept: 8 of 8 images, 8 of them made now; 2.7 MiB\n"
    assert all(map(source_in(folder).is_kept, range(8)))
    done = command("prepare", "train:make_loader", "--workers", "0", "--json", cwd=folder)
    (report,) = json.loads(done.stdout)
    assert (report["num_kept"], report["num_made"], report["bad"]) == (8, 0, {})


def test_damage_is_found_and_repaired(folder: Path) -> None:
    pixels = folder / "kept" / "pixels-000000.bin"
    prepare(source_in(folder), num_workers=0)
    with open(pixels, "r+b") as file:
        file.seek(1000)
        file.write(b"\0" * 1000)
    sizes = [pixels.stat().st_size // 360_000]
    for check in (False, True, True):
        prepare(source_in(folder), num_workers=0, check=check)
        sizes.append(pixels.stat().st_size // 360_000)
    assert sizes == [8, 8, 9, 9]


def test_a_full_disk_is_reported_and_exits_with_1(folder: Path) -> None:
    options = ("--workers", "0", "--arg", f"max_bytes={(1 << 20) + 288}")
    done = command("prepare", "train:make_loader", *options, cwd=folder)
    assert done.returncode == 1, done.stderr
    assert "2 of 8 images, 2 of them made now" in done.stdout
    assert "There is no room for more." in done.stdout


def test_bad_images_are_listed(tmp_path: Path) -> None:
    _, damaged = write_photos(tmp_path)
    shown: list[tuple[int, int]] = []
    report = prepare(
        PreparedSource(FolderSource(damaged), tmp_path / "kept"),
        num_workers=0,
        on_progress=lambda done, total: shown.append((done, total)),
    )
    assert shown[-1] == (N, N)
    assert report.num_kept + len(report.bad) == N
    assert report.bad
    assert not report.is_full
    for index, reason in report.bad.items():
        assert FolderSource(damaged).path(index) in reason


def test_a_loader_without_prepared_images_is_refused(folder: Path) -> None:
    done = command("prepare", "train:make_plain", cwd=folder)
    assert done.returncode == 2
    assert "is not a PreparedSource and contains none. Remedy:" in done.stderr
