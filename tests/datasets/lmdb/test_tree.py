"""The tree of an LMDB file: LMDB's own keys, or a refusal, for any bytes."""

from __future__ import annotations

import os
from pathlib import Path

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stateful_gpu_loader.datasets.lmdb import read_leaves, read_meta
from tests.datasets.lmdb.lmdb_files import write_lmdb


def items(file: Path) -> tuple[list[bytes], list[int]]:
    """Return all keys, and the lengths of all values."""
    keys: list[bytes] = []
    lengths: list[int] = []
    descriptor = os.open(file, os.O_RDONLY)
    try:
        for names, sizes in read_leaves(descriptor, read_meta(descriptor)):
            keys += names
            lengths += sizes
    finally:
        os.close(descriptor)
    return keys, lengths


def as_lmdb_reads(file: Path) -> tuple[list[bytes], list[int]]:
    with (
        lmdb.open(str(file), subdir=False, readonly=True, lock=False) as environment,
        environment.begin() as transaction,
    ):
        pairs = [(key, len(value)) for key, value in transaction.cursor()]
    return [key for key, _ in pairs], [length for _, length in pairs]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.binary(min_size=1, max_size=60), st.integers(0, 9000), max_size=60),
    st.lists(st.integers(0, 59), max_size=30),
)
def test_keys_and_lengths_are_lmdbs(
    tmp_path: Path, sizes: dict[bytes, int], deleted: list[int]
) -> None:
    """Also after records were deleted and overwritten in separate transactions."""
    file = tmp_path / "db.mdb"
    file.unlink(missing_ok=True)
    with lmdb.open(str(file), subdir=False, map_size=1 << 24, sync=False) as environment:
        with environment.begin(write=True) as transaction:
            for key, size in sizes.items():
                transaction.put(key, bytes(size))
        for number in deleted:
            with environment.begin(write=True) as transaction:
                key = [*sizes, b"absent"][number % (len(sizes) + 1)]
                if number % 2:
                    transaction.delete(key)
                else:
                    transaction.put(key, bytes(number))
    assert items(file) == as_lmdb_reads(file)


@pytest.mark.parametrize("count", [0, 1, 200, 20_000])
def test_trees_of_every_depth_are_read(tmp_path: Path, count: int) -> None:
    records = {f"{number:07d}{'a' * (number % 90)}": bytes(number % 40) for number in range(count)}
    file = write_lmdb(tmp_path / "db.mdb", records, subdir=False)
    keys, lengths = items(file)
    assert keys == [key.encode() for key in records]
    assert lengths == [number % 40 for number in range(count)]
    descriptor = os.open(file, os.O_RDONLY)
    depth = read_meta(descriptor).depth
    os.close(descriptor)
    assert depth == {0: 0, 1: 1, 200: 2, 20_000: 3}[count]


def test_no_value_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This is why the reader exists: a hundred records of 50 KB cost a few pages."""
    file = write_lmdb(tmp_path / "db.mdb", [bytes(50_000)] * 100, subdir=False)
    read: list[int] = []
    pread = os.pread

    def counted(descriptor: int, size: int, place: int) -> bytes:
        data = pread(descriptor, size, place)
        read.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", counted)
    assert items(file)[1] == [50_000] * 100
    assert sum(read) < 6 * 4096


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    records = {f"{number:05d}": bytes(number % 3000) for number in range(300)}
    path = write_lmdb(tmp_path_factory.mktemp("sound") / "db.mdb", records, subdir=False)
    return path.read_bytes()


@pytest.mark.parametrize("kept", [0, 100, 4096, 4200, 8192, 0.3, 0.6])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, sound: bytes, kept: float) -> None:
    file = tmp_path / "db.mdb"
    file.write_bytes(sound[: kept if isinstance(kept, int) else int(kept * len(sound))])
    with pytest.raises(ValueError, match=r"no meta page|lies beyond the file's end"):
        items(file)


def altered(sound: bytes, place: int, value: bytes) -> bytes:
    """Return the file with a value changed in both meta pages."""
    data = bytearray(sound)
    for page in (0, 4096):
        data[page + place : page + place + len(value)] = value
    return bytes(data)


@pytest.mark.parametrize(
    ("place", "value", "text"),
    [
        (16, b"no", "no LMDB meta page at byte 0"),
        (20, b"\2\0\0\0", "LMDB's format 2"),
        (40, b"\0\0\0\0", "pages of 0 bytes"),
        (94, b"\x40\0", "a tree of 64 levels"),
        (94, b"\1\0", r"page \d+ is not the page of the tree"),
        (104, b"\x99\x01", r"300 records on \d+ pages were found, expected 300 on 409"),
        (120, b"\x2b\x01", r"300 records on \d+ pages were found, expected 299"),
        (128, b"\1\0\0\0\0\0\0\0", "page 1 is not the page of the tree"),
        (128, b"\1\1\1\1\1\1\0\0", r"page \d+ of \d+ is requested"),
    ],
)
def test_a_meta_page_that_lies_is_found_out(
    tmp_path: Path, sound: bytes, place: int, value: bytes, text: str
) -> None:
    file = tmp_path / "db.mdb"
    file.write_bytes(altered(sound, place, value))
    with pytest.raises(ValueError, match=text):
        items(file)


def test_sub_databases_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "db.mdb"
    with lmdb.open(str(file), subdir=False, max_dbs=2) as environment:
        part = environment.open_db(b"part")
        with environment.begin(write=True, db=part) as transaction:
            transaction.put(b"key", b"value")
    with pytest.raises(ValueError, match="sub-databases or several values under one key"):
        items(file)
