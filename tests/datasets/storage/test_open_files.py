"""Ranges of files, read by many threads and processes with few descriptors."""

from __future__ import annotations

import gc
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest

from stateful_gpu_loader.datasets.storage.open_files import OpenFiles
from tests.datasets.storage.processes import in_a_fork, in_a_fork_while_held, open_descriptors


def write_files(folder: Path, count: int) -> list[str]:
    for number in range(count):
        (folder / f"{number}").write_bytes(f"{number:04d}".encode() * 100)
    return [str(folder / f"{number}") for number in range(count)]


def test_ranges_are_read(tmp_path: Path) -> None:
    path = write_files(tmp_path, 1)[0]
    fsspec.filesystem("memory").pipe("memory://ranges", Path(path).read_bytes())
    for place in (path, f"file://{path}", "memory://ranges"):
        files = OpenFiles()
        data = files.read(place, 2, 6)
        assert (bytes(data), data.dtype) == (b"000000", "uint8")
        assert data.flags.writeable
        assert bytes(files.read(place, 400, 0)) == b""
        assert len(files.read(place, 0, 400)) == 400
        with pytest.raises(ValueError, match=r"byte 400.*2"):
            files.read(place, 399, 2)


@pytest.mark.parametrize("at_once", [1, 3, 400])
def test_parts_are_filled_however_little_a_call_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Network file systems read less than requested."""
    content = bytes(range(100))
    (tmp_path / "a").write_bytes(content)
    fsspec.filesystem("memory").pipe("memory://parts", content)
    actual = os.preadv

    def reluctant(descriptor: int, parts: list[memoryview], offset: int) -> int:
        first = next(part for part in parts if len(part))
        return actual(descriptor, [first[:at_once]] if at_once < 400 else parts, offset)

    monkeypatch.setattr("stateful_gpu_loader.datasets.storage.open_files.os.preadv", reluctant)
    for place in (str(tmp_path / "a"), "memory://parts"):
        parts = [bytearray(size) for size in (0, 2, 0, 5, 1, 0)]
        OpenFiles().fill(place, 90, [memoryview(part) for part in parts])
        assert [bytes(part) for part in parts] == [
            content[begin:end] for begin, end in ((90, 90), (90, 92), (92, 92), (92, 97), (97, 98))
        ] + [b""]
        with pytest.raises(ValueError, match=r"byte 100.*11"):
            OpenFiles().fill(place, 90, [memoryview(bytearray(4)), memoryview(bytearray(7))])


def test_a_file_that_is_not_there_is_an_oserror(tmp_path: Path) -> None:
    for path in (str(tmp_path / "absent"), f"file://{tmp_path}/absent", "memory://absent"):
        with pytest.raises(FileNotFoundError, match="absent"):
            OpenFiles().read(path, 0, 1)


def test_descriptors_are_few_though_threads_are_many(tmp_path: Path) -> None:
    paths = write_files(tmp_path, 60)
    gc.collect()
    before = open_descriptors()
    files = OpenFiles(limit=5)
    most = []

    def read(turn: int) -> bytes:
        data = files.read(paths[turn % 60], 0, 4).tobytes()
        most.append(open_descriptors())
        return data

    with ThreadPoolExecutor(8) as pool:
        read_by_turn = list(pool.map(read, range(600)))
    assert read_by_turn == [f"{turn % 60:04d}".encode() for turn in range(600)]
    # One for each thread besides the kept ones, and one for the listing.
    assert max(most) <= before + 5 + 8 + 8
    assert open_descriptors() <= before + 5
    files.forget()
    gc.collect()
    assert open_descriptors() == before


def test_a_file_is_opened_once_and_the_one_read_longest_ago_is_closed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, system_open = [], os.open

    def noting(path: str, *arguments: int) -> int:
        opened.append(path)
        return system_open(path, *arguments)

    monkeypatch.setattr(os, "open", noting)
    often, once, again = write_files(tmp_path, 3)
    files = OpenFiles(limit=2)
    for path in (often, once, often, again, often):
        files.read(path, 0, 4)
    assert opened == [often, once, again]


def test_a_pickled_copy_has_nothing_open(tmp_path: Path) -> None:
    path = write_files(tmp_path, 1)[0]
    files = OpenFiles(limit=3)
    files.read(path, 0, 4)
    before = open_descriptors()
    copy = pickle.loads(pickle.dumps(files))
    assert open_descriptors() == before
    assert bytes(copy.read(path, 0, 4)) == b"0000"
    assert copy._limit == 3


def test_a_fork_opens_its_own(tmp_path: Path) -> None:
    """Also if another thread of the parent was opening a file at that moment."""
    path = write_files(tmp_path, 1)[0]
    files = OpenFiles()
    files.read(path, 0, 4)
    descriptor = files._files[path].number

    def reads() -> bool:
        closed = not os.path.exists(f"/proc/self/fd/{descriptor}")
        return closed and bytes(files.read(path, 0, 4)) == b"0000"

    assert in_a_fork(reads) == 0
    assert in_a_fork_while_held(files._lock, reads) == 0
    assert bytes(files.read(path, 0, 4)) == b"0000"
