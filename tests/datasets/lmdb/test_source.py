"""Caffe's LMDBs by index: reads, refusals, and the fingerprint."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import lmdb
import numpy as np
import pytest
import torch

from stateful_gpu_loader.datasets.caffe_lmdb import CaffeLMDBSource
from stateful_gpu_loader.errors import MissingDependency
from tests.datasets.lmdb.lmdb_files import (
    decoded,
    encoded_datum,
    message,
    photo_files,
    raw_datum,
    write_lmdb,
)
from tests.datasets.source_conformance import items
from tests.images import photograph


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Keys of different lengths, not written in their order."""
    records = {f"{number}_photo.jpg": encoded_datum(b"%d" % number, number) for number in range(12)}
    return write_lmdb(tmp_path / "train", dict(reversed(records.items())))


def test_records_come_in_the_order_of_their_keys(path: Path) -> None:
    expected = [0, 10, 11, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    for given_path in (path, str(path), path / "data.mdb", [path]):
        source = CaffeLMDBSource(given_path)
        assert items(source) == [(b"%d" % number, number) for number in expected]
        assert type(source[0][1]) is int


def test_several_paths_follow_one_another(path: Path, tmp_path: Path) -> None:
    """A large record is read whole."""
    large = np.random.default_rng(0).integers(0, 256, 3_000_000, dtype=np.uint8).tobytes()
    more = write_lmdb(tmp_path / "more.mdb", [encoded_datum(large, 5)], subdir=False)
    first, second = items(CaffeLMDBSource(path)), [(large, 5)]
    source = CaffeLMDBSource([path, more, str(path)])
    assert source.paths == (str(path), str(more), str(path))
    assert items(source) == first + second + first
    assert source[-13][1] == source[12][1] == 5
    assert len(source) == 25


def test_a_sample_names_its_database_and_its_key(path: Path) -> None:
    sample = CaffeLMDBSource(path).read(1)
    assert sample.name == f"{path}, record '10_photo.jpg'"
    assert sample.data.dtype == torch.uint8


def test_photographs_and_their_pixels_are_decoded(tmp_path: Path) -> None:
    """Raw pixels, grey ones too, become a file that decodes to exactly these pixels."""
    pixels = np.asarray(photograph("coffee"))[:90, :120]
    files = photo_files(tmp_path / "photos")
    records = [encoded_datum(data, label) for data, label in files]
    records += [raw_datum(pixels, 7), raw_datum(pixels[:, :, 1], 8)]
    source = CaffeLMDBSource(write_lmdb(tmp_path / "db", records))
    assert items(source)[: len(files)] == files
    assert np.array_equal(decoded(source, -2), pixels)
    assert np.array_equal(decoded(source, -1), pixels[:, :, [1, 1, 1]])
    assert [source[-2][1], source[-1][1]] == [7, 8]


def test_the_order_of_channels_is_the_users(tmp_path: Path) -> None:
    pixels = np.asarray(photograph("coffee"))[:9, :12]
    path = write_lmdb(tmp_path / "db", [raw_datum(pixels, 7, bgr=False)])
    source, turned = CaffeLMDBSource(path, channel_order="RGB"), CaffeLMDBSource(path)
    assert np.array_equal(decoded(source), pixels)
    assert np.array_equal(decoded(turned), pixels[:, :, ::-1])
    assert source.fingerprint() != turned.fingerprint()
    with pytest.raises(ValueError, match=r"channel_order.*'RBG'.*'BGR'.*'RGB'"):
        CaffeLMDBSource(path, channel_order="RBG")  # type: ignore[arg-type]


def test_records_without_labels_are_numbered_if_that_is_asked_for(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "db", [message((4, b"a"), (7, 1)), message((4, b"b"), (7, 1))])
    assert items(CaffeLMDBSource(path, label_available=False)) == [(b"a", 0), (b"b", 1)]
    with pytest.raises(ValueError, match=r"'00000001'.*label_available"):
        CaffeLMDBSource(path)[1]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (encoded_datum(b"abcdef", 7)[:6], "malformed protocol buffer at byte 0: field 4 claims 6"),
        (b"", "the record holds no data"),
        (message((1, 3), (2, 4), (3, 4), (4, b"ab"), (5, 0), (7, 0)), "3 channels of 4 x 4 pixels"),
        (message((6, 0.5), (5, 0)), "the record holds float_data"),
    ],
)
def test_a_corrupt_record_is_named_and_the_others_are_read(
    tmp_path: Path, record: bytes, reason: str
) -> None:
    """A ValueError, because every retry would fail."""
    path = write_lmdb(tmp_path / "db", [encoded_datum(b"a", 1), record, encoded_datum(b"c", 3)])
    source = CaffeLMDBSource(path)
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"db'.*'00000001': {reason}"):
            source[1]
    assert [source[0][1], source[2][1]] == [1, 3]


def test_an_empty_database_and_no_paths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"db' holds no record. Remedy: check the path"):
        CaffeLMDBSource(write_lmdb(tmp_path / "db", []))
    with pytest.raises(ValueError, match="no paths were given"):
        CaffeLMDBSource([])


def test_a_key_that_was_deleted_is_named(path: Path) -> None:
    """The database has changed since its keys were read, so this is no bad sample."""
    source = pickle.loads(pickle.dumps(CaffeLMDBSource(path)))
    del_key(path, b"10_photo.jpg")
    with pytest.raises(OSError, match=r"'10_photo.jpg'.*'.*train'$"):
        source[1]
    assert [source[index][1] for index in (0, 2)] == [0, 11]
    assert len(CaffeLMDBSource(path)) == 11


def del_key(path: Path, key: bytes) -> None:
    """Delete a key like another program; this process has no environment open meanwhile."""
    with lmdb.open(str(path)) as environment, environment.begin(write=True) as transaction:
        assert transaction.delete(key)


def test_a_database_written_anew_has_the_same_fingerprint(path: Path, tmp_path: Path) -> None:
    """The same records are the same dataset, in whatever order they were written.

    Later releases compare states that are saved today.
    """
    source = CaffeLMDBSource(path)
    assert source.fingerprint() == "12 LMDB records, blake2b fe7f6d913001d19e0dd00e238c320f12"
    assert (fingerprint := source.fingerprint()) is source.fingerprint()
    del source
    (tmp_path / "compact").mkdir()
    with lmdb.open(str(path), readonly=True, lock=False) as environment:
        environment.copy(str(tmp_path / "compact"), compact=True)
        with environment.begin() as transaction:
            records = {key.decode(): value for key, value in transaction.cursor()}
    assert CaffeLMDBSource(tmp_path / "compact").fingerprint() == fingerprint
    anew = write_lmdb(tmp_path / "anew.mdb", records, subdir=False)
    assert CaffeLMDBSource(anew).fingerprint() == fingerprint


CHANGES: dict[str, Callable[[dict[str, bytes]], dict[str, bytes]]] = {
    "a label": lambda records: records | {"5": encoded_datum(b"5", 99)},
    "bytes": lambda records: records | {"5": encoded_datum(b"x", 5)},
    "one more": lambda records: records | {"99": encoded_datum(b"99", 99)},
    "one less": lambda records: {key: records[key] for key in records if key != "5"},
    "a key": lambda records: {f"{key}{'a' * (key == '5')}": records[key] for key in records},
    "the first": lambda records: records | {"0": encoded_datum(b"0", 1)},
    "the last": lambda records: records | {"9": encoded_datum(b"9", 1)},
}


def test_the_fingerprint_notices_what_changed(tmp_path: Path) -> None:
    """In a large database a sample of records is compared, including the last."""
    records = {str(number): encoded_datum(b"%d" % number, number) for number in range(12)}
    seen = {CaffeLMDBSource(write_lmdb(tmp_path / "before", records)).fingerprint()}
    for name, change in CHANGES.items():
        seen.add(CaffeLMDBSource(write_lmdb(tmp_path / name, change(records))).fingerprint())
    both = [tmp_path / "before", tmp_path / "a label"]
    seen |= {CaffeLMDBSource(paths).fingerprint() for paths in (both, both[::-1])}
    many = [encoded_datum(b"%d" % number, number) for number in range(500)]
    others = [encoded_datum(b"%d!" % number, number) for number in range(500)]
    for i, each in enumerate((many, others, [*many[:-1], encoded_datum(b"499", 0)])):
        seen.add(CaffeLMDBSource(write_lmdb(tmp_path / str(i), each)).fingerprint())
    assert len(seen) == len(CHANGES) + 6


def test_a_missing_package_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(MissingDependency, match=r"'lmdb'.*stateful_gpu_loader\[lmdb\]"):
        CaffeLMDBSource(path)
