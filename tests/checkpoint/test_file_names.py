"""Names of checkpoint files: patterns, and paths of links, folders and pipes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateful_gpu_loader.checkpoint import Checkpoint
from stateful_gpu_loader.checkpoint.files import Pattern
from stateful_gpu_loader.errors import CheckpointError
from tests.checkpoint.counters import PATTERN, collected, fill, loaded, save

TOKEN = "0123456789abcdef"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("run_{seq:04d}.json", "run_0007.json"),
        ("run_{seq:04}.json", "run_0007.json"),
        ("{seq}", "7"),
        ("a/b/{seq:d}x", "a/b/7x"),
        ("/r{{1}}/{seq}.{{}}", "/r{1}/7.{}"),
        ("last.json", "last.json"),
        ("a{{seq}}", "a{seq}"),
    ],
)
def test_a_pattern_is_a_format_string(text: str, path: str) -> None:
    pattern = Pattern.of(text)
    assert pattern.path(7) == path
    assert pattern.is_numbered == ("7" in path)
    assert Pattern.of(Path(text)).path(7) == path


BRACES = "one {seq}, or {seq:04d}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("run_{epoch}_{seq}.json", BRACES),
        ("run_{}.json", BRACES),
        ("run_{seq!r}.json", BRACES),
        ("run_{seq.real}.json", BRACES),
        ("{seq}_{seq}.json", BRACES),
        ("run_{seq:x}.json", BRACES),
        ("run_{seq:4d}.json", BRACES),
        ("run_{seq:0999999999d}.json", BRACES),
        ("{seq}/run.json", BRACES),
        ("run_{seq", BRACES),
        ("run_}.json", BRACES),
        ("runs/", "names no file"),
        ("", "names no file"),
        ("..", "names no file"),
        ("run_\0.json", "is not a path"),
        ("run_\ud800_{seq}.json", "is not a path"),
        (b"run.json", "is not a path"),
        (None, "is not a path"),
    ],
)
def test_other_braces_or_no_name_are_refused(text: Any, reason: str) -> None:
    with pytest.raises(CheckpointError, match="Remedy: ") as caught:
        Pattern.of(text)
    assert reason in str(caught.value)


@pytest.mark.parametrize("text", ["run_{seq:04d}.json", "{seq}", "a.{seq:02d}", "[x]*{seq}?"])
@given(number=st.integers(0, 10**18 - 1))
def test_a_number_has_one_name_and_a_name_one_number(text: str, number: int) -> None:
    pattern = Pattern.of(text)
    assert pattern.numbers([pattern.path(number)]) == [number]


def test_other_names_have_no_number() -> None:
    names = [
        "run_7.json",
        "run_00007.json",
        # Digits of another script, which int() reads as 7.
        "run_\u0660\u0660\u0660\u0667.json",
        "run_-007.json",
        "run_0_07.json",
        "run_0007.json\n",
        "run_0007.json.bak",
        "xrun_0007.json",
        "run_.json",
        "run_0007json",
        "run_" + "9" * 5000 + ".json",
        ".run_.json." + TOKEN + ".part",
    ]
    assert Pattern.of("run_{seq:04d}.json").numbers(names) == []


def test_text_before_and_after_the_number_does_not_overlap() -> None:
    assert Pattern.of("ab{seq}ba").numbers(["aba"]) == []


def test_files_are_listed_from_the_highest_number(tmp_path: Path) -> None:
    for name in ("2", "10", "9", "010", "x", "1 "):
        (tmp_path / name).touch()
    assert list(Pattern.of(tmp_path / "{seq}").files()) == [10, 9, 2]
    assert Pattern.of(tmp_path / "missing" / "{seq}").files() == {}
    assert Pattern.of(tmp_path / "x" / "{seq}").files() == {}


def test_parts_are_known_by_their_token() -> None:
    pattern = Pattern.of("runs/run_{seq}.json")
    part = pattern.part_name(TOKEN)
    others = [f"{part}x", part[1:], part.replace("f", "g"), part.replace("run", "walk")]
    assert list(pattern.parts([part, *others])) == [f"runs/{part}"]
    assert pattern.numbers([part]) == []


def test_longest_name_of_a_file_has_a_part() -> None:
    """Letters of four bytes and of one byte."""
    for letter in ("\U0001f600", "x"):
        pattern = Pattern.of(letter * (250 // len(letter.encode())) + "{seq}")
        part = pattern.part_name(TOKEN)
        assert len(part.encode()) <= 255
        assert list(pattern.parts([part])) == [part]


def test_file_that_is_there_is_read_whatever_braces_it_has(tmp_path: Path) -> None:
    path = tmp_path / "run_{x}_{seq}.json"
    with pytest.raises(CheckpointError, match="for other braces"):
        Pattern.to_read(path)
    path.touch()
    for same in (path, str(path)):
        pattern = Pattern.to_read(same)
        assert (pattern.path(), pattern.is_numbered) == (str(path), False)
    assert Pattern.to_read(tmp_path / "run_{seq}.json").is_numbered
    # The operating system also takes the number of an open file as a file.
    with path.open() as file, pytest.raises(CheckpointError, match="is not a path"):
        Pattern.to_read(file.fileno())  # type: ignore[arg-type]


def test_the_target_of_a_link_is_replaced_in_place(tmp_path: Path) -> None:
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
        with pytest.raises(CheckpointError, match="Not a directory"):
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
        (make_folder, "Is a directory"),
        (os.mkfifo, "regular file"),
        (make_link_to_pipe, r"pipe'.*regular file"),
        (make_loop, "Too many levels of symbolic links"),
    ],
)
def test_non_files_are_not_replaced(tmp_path: Path, make: Any, reason: str) -> None:
    """A privileged process could otherwise replace a device."""
    path = tmp_path / "last.json"
    make(path)
    before = entries(tmp_path)
    with pytest.raises(CheckpointError, match=reason):
        save(path, 1)
    assert entries(tmp_path) == before


def entries(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return what replacing an entry changes; following a link changes its access time."""
    found = {name: os.lstat(folder / name) for name in os.listdir(folder)}
    return {name: (each.st_mode, each.st_ino, each.st_mtime_ns) for name, each in found.items()}


def test_name_as_long_as_names_may_be(tmp_path: Path) -> None:
    for length in (220, 255):
        path = tmp_path / ("x" * length)
        save(path, length)
        assert loaded(path) == length
        for too_long in (f"{path.name}{'y' * 36}", "x" * 254 + "{seq:02d}"):
            with pytest.raises(CheckpointError, match="too long"):
                save(tmp_path / too_long, 1)
    assert len(os.listdir(tmp_path)) == 2


def test_folder_that_cannot_be_listed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(CheckpointError, match="Too many levels"):
        Checkpoint().load(tmp_path / "loop" / PATTERN)
    with pytest.raises(CheckpointError, match="Too many levels"):
        Checkpoint().load(tmp_path / "loop" / "last.json")

    def listdir(folder: str) -> list[str]:
        raise PermissionError(13, "Permission denied", folder)

    monkeypatch.setattr(os, "listdir", listdir)
    with pytest.raises(CheckpointError, match="Permission denied"):
        Checkpoint().load(tmp_path / PATTERN)


def test_folder_that_fails_to_be_listed_for_removal_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has been written by then."""
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
    """The error must not suggest removing the folder of all checkpoints."""
    fill(tmp_path, 1)
    with pytest.raises(CheckpointError, match="pattern") as caught:
        Checkpoint().load(tmp_path)
    assert "remove" not in str(caught.value)
