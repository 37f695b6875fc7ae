"""Paths of links, folders and pipes, long ones and those with braces (E1, E6)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader.checkpoint import Checkpoint
from stateful_gpu_loader.errors import CheckpointError
from tests.checkpoint.counters import PATTERN, collected, fill, loaded, save


def test_one_file_behind_a_link_is_replaced_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "last.json"
    link.symlink_to(tmp_path / "real" / "file.json")
    for count in (1, 2):
        assert save(link, count) == str(link)
        assert link.is_symlink()
        assert loaded(tmp_path / "real" / "file.json") == count
    assert os.listdir(tmp_path / "real") == ["file.json"]


def test_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / PATTERN, tmp_path / "file" / "new" / "last.json"):
        with pytest.raises(CheckpointError, match=r"could not be written: Not a directory"):
            save(path, 1)
    assert os.listdir(tmp_path) == ["file"]


def make_folder(path: Path) -> None:
    path.mkdir()


def make_link_to_pipe(path: Path) -> None:
    os.mkfifo(path.parent / "pipe")
    path.symlink_to("pipe")


def make_loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (make_folder, r"Is a directory.*Remedy: pass the path of a file, or a pattern"),
        (os.mkfifo, r"is no regular file, and nothing was written\. Remedy: pass the path"),
        (make_link_to_pipe, r"pipe' is no regular file, and nothing was written"),
        (make_loop, r"Too many levels of symbolic links.*Remedy: save to another folder"),
    ],
)
def test_what_is_no_file_is_not_replaced(tmp_path: Path, make: Any, reason: str) -> None:
    """As one who may do all would replace a device."""
    path = tmp_path / "last.json"
    make(path)
    before = {name: os.lstat(tmp_path / name) for name in os.listdir(tmp_path)}
    with pytest.raises(CheckpointError, match=reason):
        save(path, 1)
    assert {name: os.lstat(tmp_path / name) for name in os.listdir(tmp_path)} == before


def test_name_as_long_as_names_may_be(tmp_path: Path) -> None:
    for length in (220, 255):
        path = tmp_path / ("x" * length)
        save(path, length)
        assert loaded(path) == length
        for too_long in (f"{path.name}{'y' * 36}", "x" * 254 + "{seq:02d}"):
            with pytest.raises(CheckpointError, match=r"too long.*Remedy: pass a shorter name"):
                save(tmp_path / too_long, 1)
    assert len(os.listdir(tmp_path)) == 2


def test_folder_that_cannot_be_listed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(CheckpointError, match=r"cannot be listed: Too many levels.*Remedy: "):
        Checkpoint().load(tmp_path / "loop" / PATTERN)
    with pytest.raises(CheckpointError, match=r"cannot be read: Too many levels.*Remedy: "):
        Checkpoint().load(tmp_path / "loop" / "last.json")

    def listdir(folder: str) -> list[str]:
        raise PermissionError(13, "Permission denied", folder)

    monkeypatch.setattr(os, "listdir", listdir)
    with pytest.raises(CheckpointError, match=r"cannot be listed: Permission denied.*Remedy: "):
        Checkpoint().load(tmp_path / PATTERN)


def test_folder_that_fails_to_be_listed_for_removal_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is there by then."""
    original, listed = os.listdir, []

    def listdir(folder: str) -> list[str]:
        listed.append(folder)
        if len(listed) == 4:
            raise OSError(5, "Input/output error", folder)
        return original(folder)

    monkeypatch.setattr(os, "listdir", listdir)
    with pytest.warns(UserWarning, match="Input/output error"):
        collected(counter=3).save(tmp_path / PATTERN, keep=1)
    assert loaded(tmp_path / PATTERN) == 3


def test_folder_in_place_of_a_pattern_is_refused(tmp_path: Path) -> None:
    """Nobody is told to remove the folder of all checkpoints."""
    fill(tmp_path, 1)
    with pytest.raises(CheckpointError, match=r"but a folder\. Remedy: .*the pattern") as caught:
        Checkpoint().load(tmp_path)
    assert "remove" not in str(caught.value)


def test_path_that_save_returned_is_loaded_braces_and_all(tmp_path: Path) -> None:
    written = collected(counter=3).save(f"{tmp_path}/{{{{a}}}}/run_{{seq}}_{{{{b}}}}.json")
    assert written == f"{tmp_path}/{{a}}/run_0_{{b}}.json"
    assert loaded(written) == 3
