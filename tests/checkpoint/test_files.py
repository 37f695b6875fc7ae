"""A file is whole or absent, whenever the writer dies or fails."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader.errors import CheckpointError
from tests.checkpoint.counters import PATTERN, loaded, save
from tests.datasets.storage.processes import in_a_fork

PATHS = (PATTERN, "last.json")
CALLS = ("open", "write", "fsync", "link", "replace", "unlink", "close", "listdir", "fstat")
"""Functions of ``os`` in which a writer may die or fail."""


def parts(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.endswith(".part")]


def die(call: str = "") -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before_call(number: int, act: Callable[[str], None]) -> Iterator[int]:
    """Call ``act`` before each of the calls of the operating system in this process.

    Returns:
        An iterator that counts the calls.
    """
    calls = itertools.count()

    def watched(name: str, original: Any) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            if next(calls) == number:
                act(name)
            return original(*given)

        return call

    for name in CALLS:
        setattr(os, name, watched(name, getattr(os, name)))
    return calls


def after_bytes(count: int, act: Callable[[], None]) -> None:
    """Call ``act`` once a write in this process has written so many bytes."""
    original = os.write

    def write(descriptor: int, data: Any) -> int:
        original(descriptor, bytes(data)[:count])
        act()
        return len(data)

    os.write = write  # type: ignore[assignment]


@pytest.mark.processes
@pytest.mark.parametrize("name", PATHS)
def test_killed_writer_leaves_the_previous_file_whole_at_any_byte(
    tmp_path: Path, name: str
) -> None:
    """A real SIGKILL after k bytes of the write."""
    path = tmp_path / name
    length = os.path.getsize(save(path, 1))

    def killed_after(count: int) -> Callable[[], bool]:
        def work() -> bool:
            after_bytes(count, die)
            save(path, 2)
            return False

        return work

    for count in [*range(0, length, 48), length - 1, length]:
        assert in_a_fork(killed_after(count)) == -signal.SIGKILL
        assert parts(tmp_path)
        assert loaded(path) == 1
        assert len(os.listdir(tmp_path)) == 2, "the next writer removes what the last one left"
    save(path, 3)
    assert loaded(path) == 3
    assert not parts(tmp_path)


@pytest.mark.processes
@pytest.mark.parametrize(("name", "keep"), [(PATHS[0], None), (PATHS[0], 1), (PATHS[1], None)])
def test_killed_writer_leaves_a_whole_file_at_any_call(
    tmp_path: Path, name: str, keep: int | None
) -> None:
    """Killed before each call of the operating system in turn, until one save completes."""
    path = tmp_path / name
    for number in range(100):
        previous, count = 2 * number, 2 * number + 1
        save(path, previous, keep)

        def work(number: int = number, count: int = count) -> bool:
            before_call(number, die)
            save(path, count, keep)
            return True

        status = in_a_fork(work)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert loaded(path) in ((count,) if status == 0 else (previous, count))
        if status == 0:
            break
        assert status == -signal.SIGKILL
    assert number > 8
    assert not parts(tmp_path)
    if keep:
        assert len(os.listdir(tmp_path)) == keep


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("name", PATHS)
def test_failure_at_any_call_leaves_a_whole_file_and_says_so(
    tmp_path: Path, name: str, code: int
) -> None:
    """The disk is full, or fails, at each call in turn. The next save succeeds."""
    path = tmp_path / name

    failed_in = []

    def fail(call: str) -> None:
        failed_in.append(call)
        raise OSError(code, os.strerror(code))

    for number in range(100):
        previous, count = 2 * number, 2 * number + 1
        save(path, previous)
        failure = None
        with pytest.MonkeyPatch.context() as patch:
            for call in CALLS:
                patch.setattr(os, call, getattr(os, call))
            calls = before_call(number, fail)
            try:
                save(path, count)
            except CheckpointError as error:
                failure = error
        assert loaded(path) in ((count,) if failure is None else (previous, count))
        if failure is not None:
            assert os.strerror(code) in str(failure)
            assert "The files before it are whole. Remedy: " in str(failure)
            assert ("Remedy: make room" in str(failure)) == (code == errno.ENOSPC)
            assert isinstance(failure.__cause__, OSError)
        if next(calls) <= number:
            break
    assert {"open", "write", "fsync", "listdir", "close"} <= set(failed_in)
    save(path, 10**6)
    assert loaded(path) == 10**6
    assert not parts(tmp_path), failed_in


def test_write_in_pieces_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operating system writes a large file in parts."""
    original = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: original(descriptor, data[:7]))
    save(tmp_path / "last.json", 5)
    assert loaded(tmp_path / "last.json") == 5


def test_file_is_synced_before_it_has_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A named file survives a power loss. Old files are removed only afterwards."""
    path = tmp_path / "new" / "folder" / PATHS[0]
    seen: list[str] = []

    def fsync(descriptor: int, original: Any = os.fsync) -> None:
        target = os.readlink(f"/proc/self/fd/{descriptor}")
        seen.append("part" if target.endswith(".part") else os.path.basename(target))
        original(descriptor)

    def tell(name: str, about: str) -> None:
        original = getattr(os, name)

        def call(*given: Any) -> None:
            if name != "unlink" or not given[0].endswith(".part"):
                seen.append(about)
            original(*given)

        monkeypatch.setattr(os, name, call)

    monkeypatch.setattr(os, "fsync", fsync)
    tell("link", "named")
    tell("unlink", "old removed")
    save(path, 1)
    assert seen == [tmp_path.name, "new", "part", "named", "folder"]
    seen.clear()
    save(path, 2, keep=1)
    assert seen == ["part", "named", "folder", "old removed"]


@pytest.mark.parametrize("code", [errno.EIO, errno.EINVAL])
def test_folder_that_fails_to_be_synced_is_a_failure_unless_it_does_not_support_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """No old file is removed, since the new file may not survive a power loss."""
    save(tmp_path / PATHS[0], 1)

    def fsync(descriptor: int, original: Any = os.fsync) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(code, os.strerror(code))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    if code == errno.EINVAL:
        save(tmp_path / PATHS[0], 2)
        assert loaded(tmp_path / PATHS[0]) == 2
        return
    with pytest.raises(CheckpointError, match="Input/output error"):
        save(tmp_path / PATHS[0], 2, keep=1)
    assert sorted(os.listdir(tmp_path)) == ["run_0000.json", "run_0001.json"]


def test_without_hard_links_files_are_numbered_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Network and FAT file systems have none."""
    path = tmp_path / PATHS[0]

    def link(part: str, target: str) -> None:
        if target.endswith("0001.json") and not os.path.exists(target):
            Path(target).write_text("taken meanwhile")
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    assert [os.path.basename(save(path, count)) for count in (1, 2)] == [
        "run_0000.json",
        "run_0002.json",
    ]
    assert (tmp_path / "run_0001.json").read_text() == "taken meanwhile"
    assert loaded(path) == 2

    def replace(part: str, target: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(CheckpointError, match="Input/output error"):
        save(path, 3)
    assert sorted(os.listdir(tmp_path)) == [f"run_000{number}.json" for number in range(3)]


def test_files_have_the_permissions_that_other_files_have(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    written = save(tmp_path / PATHS[0], 1)
    assert os.stat(written).st_mode == os.stat(tmp_path / "other").st_mode
