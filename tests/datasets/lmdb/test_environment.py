"""LMDB files are opened once a process, never across a fork, and never read beyond their end."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import lmdb
import pytest

from stateful_gpu_loader.datasets import lmdb as lmdb_environment
from stateful_gpu_loader.datasets.caffe_lmdb import CaffeLMDBSource
from stateful_gpu_loader.datasets.lmdb import environment_at
from tests import interrupts
from tests.datasets.lmdb.lmdb_files import encoded_datum, write_lmdb
from tests.datasets.storage.processes import in_a_fork
from tests.patience import seconds


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_lmdb(tmp_path / "db", [encoded_datum(b"%d" % i * 3000, i) for i in range(50)])


def labels(source: CaffeLMDBSource) -> list[int]:
    return [source[index][1] for index in range(len(source))]


def test_sources_over_one_file_share_what_is_open(path: Path, tmp_path: Path) -> None:
    """LMDB forbids opening a file twice, even through a link."""
    (tmp_path / "link").symlink_to(path)
    sources = [CaffeLMDBSource(each) for each in (path, path / "data.mdb", tmp_path / "link", path)]
    copies = [pickle.loads(pickle.dumps(source)) for source in sources]
    assert all(labels(source) == list(range(50)) for source in sources + copies)
    with pytest.raises(lmdb.Error, match="already open"):
        lmdb.open(str(path))


def test_a_file_is_closed_when_its_last_source_goes(path: Path) -> None:
    """Then the user may write it."""
    first, second = CaffeLMDBSource(path), CaffeLMDBSource(path)
    del first
    assert labels(second) == list(range(50))
    del second
    gc.collect()
    lmdb.open(str(path)).close()


def test_a_file_that_another_has_open_is_refused(path: Path) -> None:
    with lmdb.open(str(path)), pytest.raises(OSError, match=r"already open in this process.*close"):
        CaffeLMDBSource(path)
    assert len(CaffeLMDBSource(path)) == 50


def test_a_source_made_anew_reads_the_database_that_is_there_now(tmp_path: Path) -> None:
    """Even while a source of the earlier database exists."""
    path = write_lmdb(tmp_path / "lmdb", [encoded_datum(b"a", 1)])
    first = CaffeLMDBSource(path)
    assert first[0][1] == 1
    shutil.rmtree(path)
    write_lmdb(path, [encoded_datum(b"a", 2)])
    assert CaffeLMDBSource(path)[0][1] == 2
    assert first[0][1] == 1, "it holds the file that it has indexed"
    pickled = pickle.dumps(first)
    del first
    with pytest.raises(OSError, match="replaced by another database"):
        pickle.loads(pickled).read(0)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (
            lambda data: data[:-4096],
            r"truncated LMDB: the file has \d+ bytes, but its header says \d+.*Remedy",
        ),
        (lambda data: data[: len(data) // 2], "truncated LMDB"),
        (lambda data: data[:8192], "truncated LMDB: the file has 8192 bytes"),
        (lambda data: data[:100], r"open this file of 100 bytes .*not an LMDB file.*Remedy"),
        (lambda data: b"", "cannot open this file of 0 bytes"),
        (lambda data: b"\xff\xd8\xff" * 9999, "this file of 29997 bytes .*not an LMDB file"),
    ],
)
def test_a_damaged_file_is_refused_before_it_is_read(
    path: Path, damage: Callable[[bytes], bytes], text: str
) -> None:
    """Reading a mapped file beyond its end kills the process.

    Tested before and after the keys are read. The error is an OSError: the file is bad, not a
    sample.
    """
    pickled, file = pickle.dumps(CaffeLMDBSource(path)), path / "data.mdb"
    damaged = damage(file.read_bytes())
    with open(file, "r+b") as opened:
        opened.write(damaged)
        opened.truncate()
    for open_source in (lambda: CaffeLMDBSource(path), lambda: pickle.loads(pickled)[0]):
        with pytest.raises(OSError, match=rf"{text}.*data\.mdb'$"):
            open_source()


def test_a_missing_file_is_named_and_not_made(tmp_path: Path) -> None:
    """Making an environment opens nothing."""
    (tmp_path / "empty").mkdir()
    for name in ("absent", "absent.mdb", "empty"):
        with pytest.raises(FileNotFoundError, match=rf"no LMDB is here. Remedy: check.*{name}"):
            CaffeLMDBSource(tmp_path / name)
    environment = environment_at(tmp_path / "nowhere")
    assert pickle.loads(pickle.dumps(environment)) is environment
    assert "nowhere" in repr(environment)
    assert list(tmp_path.rglob("*")) == [tmp_path / "empty"]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (8, (2**40).to_bytes(8, "little")),
        (8, (10**6).to_bytes(8, "little")),
        (-8, (2**32 - 1).to_bytes(4, "little")),
        (-8, (2**19).to_bytes(4, "little")),
    ],
)
def test_a_record_that_lies_beyond_the_file_is_bad_and_the_others_are_read(
    path: Path, place: int, value: bytes
) -> None:
    """Its leaf gives a wrong page or length; LMDB would read there, and the process would end."""
    file = path / "data.mdb"
    data = bytearray(file.read_bytes())
    at = data.index(b"00000007") + place
    data[at : at + len(value)] = value
    file.write_bytes(data)
    source = CaffeLMDBSource(path)
    assert source.fingerprint()
    for each in (source, pickle.loads(pickle.dumps(source))):
        with pytest.raises(ValueError, match=r"db', record '00000007': damaged LMDB: .*beyond the"):
            each[7]
        assert [each[6][1], each[8][1]] == [6, 8]


def test_a_tree_whose_pages_are_lost_is_refused(path: Path) -> None:
    """The root page no longer belongs to the tree, before or after the keys were read."""
    pickled = pickle.dumps(CaffeLMDBSource(path))
    file = path / "data.mdb"
    data = bytearray(file.read_bytes())
    at = data.index(b"00000007") // 4096 * 4096
    data[at + 10 : at + 12] = b"\0\0"
    file.write_bytes(data)
    with pytest.raises(OSError, match=r"damaged LMDB: page \d+ is not the page .*Remedy: .*db'$"):
        CaffeLMDBSource(path)
    with pytest.raises(OSError, match=r"LMDB cannot read it \(.*Remedy: .*db'$"):
        pickle.loads(pickled)[0]


def _send_labels(source: CaffeLMDBSource, sender: Any) -> None:
    try:
        sender.send(labels(source))
    except BaseException as error:
        sender.send(repr(error))


def in_process(source: CaffeLMDBSource, method: Any) -> Any:
    context: Any = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_labels, args=(source, sender))
    process.start()
    assert receiver.poll(seconds(12)), "the process sent nothing"
    found = receiver.recv()
    process.join(seconds(6))
    assert process.exitcode == 0
    return found


def test_nothing_is_open_across_a_fork(path: Path) -> None:
    """The child opens the file itself, and only once."""
    source = CaffeLMDBSource(path)
    [environment] = source._environments
    source[0]
    assert environment._opened is not None
    assert in_a_fork(lambda: environment._opened is None) == 0
    assert environment._opened is None
    assert labels(source) == list(range(50))


def test_forks_while_threads_read_lose_nothing(path: Path) -> None:
    source, done = CaffeLMDBSource(path), Event()
    errors: list[BaseException] = []

    def read_on() -> None:
        try:
            while not done.is_set():
                assert labels(source) == list(range(50))
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=read_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        found = [in_process(source, "fork") for _ in range(3)]
    finally:
        done.set()
        for thread in threads:
            thread.join(seconds(6))
    assert found == [list(range(50))] * 3
    assert not errors


def test_a_read_that_hangs_holds_up_no_fork(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage may be gone for good. Only the child cannot open that file, and it says so."""
    monkeypatch.setattr(lmdb_environment, "FORK_TIMEOUT", 0.0)
    source = CaffeLMDBSource(path)
    other = CaffeLMDBSource(write_lmdb(path.parent / "other", [encoded_datum(b"a", 4)]))
    [environment] = source._environments
    read = lmdb_environment._Read()
    lmdb_environment._GATE.opened(environment, read)
    assert "already open in this process" in in_process(source, "fork")
    assert in_process(other, "fork") == [4]
    assert labels(source) == list(range(50))
    del read
    assert in_process(source, "fork") == list(range(50))


def test_an_interrupt_of_a_fork_holds_up_no_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter discards exceptions of a handler in a fork hook."""
    monkeypatch.setattr(lmdb_environment, "FORK_TIMEOUT", 0.05)
    monkeypatch.setattr(interrupts, "_HOOKS_OF_FORKS", frozenset())
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    source = CaffeLMDBSource(path)
    for number in [*interrupts.places_of(lambda: forked(source)).values()][::8]:
        source[0]
        with interrupts.interrupt_at(number):
            child = forked(source)
        with ThreadPoolExecutor(1) as reader:
            assert reader.submit(labels, source).result(seconds(6)) == list(range(50))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def forked(source: CaffeLMDBSource) -> int:
    """Return the pid of a child that exits with 7 once it has read the source."""
    child = os.fork()
    if not child:
        os._exit(7 if source[0][1] == 0 else 8)
    return child


def test_an_interrupt_of_a_read_holds_up_no_fork(path: Path) -> None:
    source = CaffeLMDBSource(path)
    [environment] = source._environments
    environment.read(b"00000000")
    for number in interrupts.places_of(lambda: environment.read(b"00000000")).values():
        with interrupts.interrupt_at(number), suppress(KeyboardInterrupt):
            environment.read(b"00000000")
        assert not environment._reads
    assert in_process(source, "fork") == list(range(50))
