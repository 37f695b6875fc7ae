"""Every source and every sharded dataset keeps all promises."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader import (
    Caffe2LMDBSource,
    CaffeLMDBSource,
    CocoSource,
    FolderSource,
    ParquetShards,
    ParquetSource,
    RecordIOShards,
    RecordIOSource,
    TarRecords,
    TarShards,
    TarSource,
    TFRecordShards,
    TFRecordSource,
    ragged_collate,
)
from tests.datasets.coco.coco_files import write_coco
from tests.datasets.lmdb.lmdb_files import encoded_datum, photo_files, tensor, tensors, write_lmdb
from tests.datasets.parquet.parquet_files import write_photos as write_parquet_photos
from tests.datasets.record_files import photos
from tests.datasets.record_kinds import RECORDIO, TFRECORD, Kind
from tests.datasets.source_conformance import assert_shards_conform, assert_source_conforms
from tests.datasets.tar.tar_files import write_photo_tars
from tests.images import write_photo_folder

Write = Callable[[Path, int], Any]
"""Writes some ten images into a folder, in a way that differs with the number; what to open."""


def folder(root: Path, number: int) -> Path:
    write_photo_folder(root, num_classes=2 + number, per_class=5 - number)
    return root


def tars(root: Path, number: int) -> list[Path]:
    return write_photo_tars(root, lengths=(4, 3, 3 + number))


def records(kind: Kind) -> Write:
    def write(root: Path, number: int) -> list[Path]:
        images = photos(root / "photos", 10 + number)
        paths = [root / "a.records", root / "b.records"]
        kind.write(paths[0], images[:6])
        kind.write(paths[1], images[6:], first=6)
        return paths

    return write


def parquet(root: Path, number: int) -> list[str]:
    return write_parquet_photos(root, counts=(6, 4 + number))


def caffe(root: Path, number: int) -> Path:
    files = photo_files(root / "photos", per_class=5 + number)
    return write_lmdb(root / "lmdb", [encoded_datum(data, label) for data, label in files])


def caffe2(root: Path, number: int) -> Path:
    files = photo_files(root / "photos", per_class=5 + number)
    entries = [tensors(tensor("string", data), tensor("int32", [label])) for data, label in files]
    return write_lmdb(root / "lmdb", entries)


SOURCES: dict[str, tuple[Callable[..., Any], Write]] = {
    "folder": (FolderSource, folder),
    "tar": (TarSource, tars),
    "tfrecord": (TFRecordSource, records(TFRECORD)),
    "recordio": (RecordIOSource, records(RECORDIO)),
    "parquet": (ParquetSource, parquet),
    "caffe": (CaffeLMDBSource, caffe),
    "caffe2": (Caffe2LMDBSource, caffe2),
}
SHARDS: dict[str, tuple[Callable[..., Any], Write]] = {
    "tar": (TarShards, tars),
    "tar records": (TarRecords, tars),
    "tfrecord": (TFRecordShards, records(TFRECORD)),
    "recordio": (RecordIOShards, records(RECORDIO)),
    "parquet": (ParquetShards, parquet),
}


@pytest.mark.parametrize("name", SOURCES)
def test_sources_conform(tmp_path: Path, name: str) -> None:
    make, write = SOURCES[name]
    given, other = write(tmp_path / "given", 0), write(tmp_path / "other", 1)
    assert_source_conforms(lambda: make(given), changed=lambda: make(other))


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_of_relative_paths_outlasts_a_change_of_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    make, write = SOURCES[name]
    given = write(tmp_path / "given", 0)
    absolute = make(given)
    monkeypatch.chdir(tmp_path)
    source = make(_relative(given, tmp_path))
    monkeypatch.chdir("/")
    assert [source[i][0].tolist() for i in range(len(source))] == [
        absolute[i][0].tolist() for i in range(len(absolute))
    ]
    assert source.fingerprint() == absolute.fingerprint()


@pytest.mark.parametrize("name", SHARDS)
def test_shards_of_relative_paths_outlast_a_change_of_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    make, write = SHARDS[name]
    given = write(tmp_path / "given", 0)
    absolute = make(given)
    monkeypatch.chdir(tmp_path)
    shards = make(_relative(given, tmp_path))
    monkeypatch.chdir("/")
    for shard in shards.shards():
        found = [cursor for _, cursor in shards.read_shard(shard, 0)]
        assert found == [cursor for _, cursor in absolute.read_shard(shard, 0)]
    assert shards.fingerprint() == absolute.fingerprint()


def _relative(given: Any, folder: Path) -> Any:
    if isinstance(given, list):
        return [os.path.relpath(path, folder) for path in given]
    return os.path.relpath(given, folder)


def test_coco_conforms(tmp_path: Path) -> None:
    """Boxes and masks are compared, too, where the recipes have put them."""
    given = write_coco(tmp_path)
    assert_source_conforms(
        lambda: CocoSource(*given, masks=True),
        changed=lambda: CocoSource(*given, masks=True, include_iscrowd=False),
        collate_fn=ragged_collate,
    )


@pytest.mark.processes
@pytest.mark.parametrize("name", SHARDS)
def test_shards_conform(tmp_path: Path, name: str) -> None:
    make, write = SHARDS[name]
    given = write(tmp_path, 0)
    assert_shards_conform(lambda: make(given), changed=lambda: make(given[:-1]))
