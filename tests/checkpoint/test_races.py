"""Several processes save to one pattern: numbers, temporary files, and removals by others."""

from __future__ import annotations

import errno
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader.checkpoint import files
from stateful_gpu_loader.checkpoint.files import Pattern
from tests.checkpoint.counters import PATTERN, collected, fill, loaded, save
from tests.checkpoint.test_files import after_bytes
from tests.datasets.storage.processes import in_a_fork, open_descriptors


def test_processes_that_save_to_one_pattern_take_numbers_of_their_own(tmp_path: Path) -> None:
    """No process replaces another's file."""
    path = tmp_path / PATTERN

    def work(writer: int) -> bool:
        counts = range(100 * writer, 100 * writer + 10)
        return all(loaded(save(path, count)) == count for count in counts)

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(in_a_fork, (partial(work, writer) for writer in range(4)))] == [0] * 4
    names = sorted(os.listdir(tmp_path))
    assert len(Pattern.of(PATTERN).numbers(names)) == len(names) == 40
    counts = [loaded(tmp_path / name) for name in names]
    assert sorted(counts) == [100 * writer + count for writer in range(4) for count in range(10)]
    of_one = [count for count in counts if count < 100]
    assert of_one == sorted(of_one)


@pytest.mark.parametrize("has_links", [True, False])
def test_number_that_was_taken_and_removed_meanwhile_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    """Otherwise two saves would share a number, and the later would sort first."""
    path = tmp_path / PATTERN
    save(path, 1)
    taken = []

    def link(part: str, target: str, original: Any = os.link) -> None:
        if not taken:
            taken.append(target)
            save(path, 2, keep=1)
            save(path, 3, keep=1)
            assert not os.path.exists(target)
        if not has_links:
            raise OSError(errno.EPERM, "Operation not permitted")
        original(part, target)

    monkeypatch.setattr(os, "link", link)
    assert os.path.basename(save(path, 4)) == "run_0003.json"
    assert taken[0].endswith("run_0001.json")
    assert sorted(os.listdir(tmp_path)) == ["run_0002.json", "run_0003.json"]
    assert loaded(path) == 4


def test_number_is_given_up_if_another_process_has_taken_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / PATTERN
    taken = []

    def link(part: str, target: str, original: Any = os.link) -> None:
        original(part, target)
        if not taken:
            taken.append(target)
            save(path, 2)

    monkeypatch.setattr(os, "link", link)
    assert os.path.basename(save(path, 1)) == "run_0002.json"
    assert sorted(os.listdir(tmp_path)) == ["run_0001.json", "run_0002.json"]
    assert loaded(path) == 1


def test_number_is_chosen_after_the_file_is_written(tmp_path: Path) -> None:
    """Numbers and removals of another process do not overtake a long write."""
    path = tmp_path / PATTERN

    def work() -> bool:
        def meanwhile() -> None:
            os.write = original
            for count in (1, 2, 3):
                save(path, count, keep=1)

        original = os.write
        after_bytes(10**6, meanwhile)
        return save(path, 4).endswith("run_0003.json")

    assert in_a_fork(work) == 0
    assert loaded(path) == 4


def test_parts_of_dead_processes_are_removed_and_others_are_not(tmp_path: Path) -> None:
    path = tmp_path / PATTERN
    pattern = Pattern.of(path)
    dead, living, folder, far = (tmp_path / pattern.part_name(digit * 16) for digit in "abcd")
    far = tmp_path / far.name.replace(files._machine(), "00000000")
    others = [tmp_path / ".run_.json.part", tmp_path / ".run_0001.json.tmp", tmp_path / "x.part"]
    for file in (dead, living, far, *others):
        file.write_text("{")
    folder.mkdir()
    with open(living) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        save(path, 1)
    assert not dead.exists()
    assert all(file.exists() for file in (living, folder, far, *others))
    assert loaded(path) == 1


def test_part_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer may look between the creation of a temporary file and its locking."""
    path = tmp_path / PATTERN
    taken = []

    def flock(descriptor: int, operation: int, original: Any = fcntl.flock) -> None:
        if not taken:
            taken.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            os.unlink(taken[0])
        original(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    before = open_descriptors()
    save(path, 1)
    assert taken
    assert open_descriptors() == before
    assert loaded(path) == 1


def test_file_removed_by_another_process_meanwhile_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 1)
    listed: list[list[str]] = [os.listdir(tmp_path)]
    original = os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: listed.pop() if listed else original(folder))
    stale = listed.pop()
    collected(counter=2).save(tmp_path / PATTERN, keep=1)
    listed.append(stale)
    assert loaded(tmp_path / PATTERN) == 2


def test_newest_is_loaded_while_a_writer_removes_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older file, which another process is about to remove, is not loaded."""
    files = fill(tmp_path, 1, 2)
    original = open

    def opened(path: Any, *given: Any, **named: Any) -> Any:
        if path == str(files[1]):
            monkeypatch.setattr("builtins.open", original)
            fill(tmp_path, 3)
            files[1].unlink()
        return original(path, *given, **named)

    monkeypatch.setattr("builtins.open", opened)
    assert loaded(tmp_path / PATTERN) == 3


def test_name_that_is_listed_and_never_there_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders of network file systems may be out of date."""
    fill(tmp_path, 1)
    monkeypatch.setattr(os, "listdir", lambda folder: ["run_0000.json", "run_0001.json"])
    with pytest.warns(UserWarning, match=r"run_0001\.json"):
        assert loaded(tmp_path / PATTERN) == 1


def test_keep_removes_nothing_newer_than_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may be ahead."""
    original = os.fsync

    def fsync(descriptor: int) -> None:
        original(descriptor)
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            monkeypatch.setattr(os, "fsync", original)
            fill(tmp_path, 5, 6, 7)

    monkeypatch.setattr(os, "fsync", fsync)
    collected(counter=4).save(tmp_path / PATTERN, keep=1)
    assert sorted(os.listdir(tmp_path)) == [f"run_000{number}.json" for number in range(4)]
