"""Every source and every sharded dataset keeps all promises."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from stateful_gpu_loader import (
    ArraySource,
    Caffe2LMDBSource,
    CaffeLMDBSource,
    CocoSource,
    FolderSource,
    HuggingFaceSource,
    ParquetShards,
    ParquetSource,
    RecordIOShards,
    RecordIOSource,
    ShardedDataset,
    TarShards,
    TarSource,
    TFRecordShards,
    TFRecordSource,
    ragged_collate,
)
from stateful_gpu_loader.datasets import TarRecords
from tests.conformance import same
from tests.datasets.coco.coco_files import annotations, write_coco
from tests.datasets.compression import COMPRESS
from tests.datasets.huggingface.saved import save_dataset
from tests.datasets.lmdb.lmdb_files import encoded_datum, photo_files, tensor, tensors, write_lmdb
from tests.datasets.parquet.parquet_files import write_photos as write_parquet_photos
from tests.datasets.record_files import photos
from tests.datasets.record_kinds import RECORDIO, TFRECORD, Kind
from tests.datasets.source_conformance import (
    assert_every_cursor,
    assert_shards_conform,
    assert_source_conforms_in_processes,
    assert_source_conforms_in_threads,
    read_all,
)
from tests.datasets.storage.processes import open_descriptors
from tests.datasets.tar.tar_files import write_photo_tars
from tests.images import small_photographs, write_photo_folder

Write = Callable[[Path, int], Any]
"""Writes about ten images into a folder, different for each number; returns the object to open."""


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


def parquet(root: Path, number: int) -> list[Path]:
    return [Path(path) for path in write_parquet_photos(root, counts=(6, 4 + number))]


def caffe(root: Path, number: int) -> Path:
    files = photo_files(root / "photos", per_class=5 + number)
    return write_lmdb(root / "lmdb", [encoded_datum(data, label) for data, label in files])


def caffe2(root: Path, number: int) -> Path:
    files = photo_files(root / "photos", per_class=5 + number)
    entries = [tensors(tensor("string", data), tensor("int32", [label])) for data, label in files]
    return write_lmdb(root / "lmdb", entries)


def coco(root: Path, number: int) -> list[Path]:
    content = annotations(number)
    root.mkdir()
    return list(write_coco(root, content))


def open_coco(given: list[Any]) -> CocoSource:
    return CocoSource(*given, masks=True)


def huggingface(root: Path, number: int) -> Path:
    files = photo_files(root / "photos", per_class=5 + number)
    return save_dataset(root / "dataset", files)


def open_huggingface(path: Path) -> HuggingFaceSource:
    from datasets import load_from_disk

    return HuggingFaceSource(load_from_disk(str(path)))


def arrays(root: Path, number: int) -> Path:
    root.mkdir()
    np.save(root / "images.npy", small_photographs(10)[:, :: 1 - 2 * number])
    return root / "images.npy"


def open_arrays(path: Path) -> ArraySource:
    return ArraySource(np.load(path, mmap_mode="r"), np.arange(10) % 3)


Make = Callable[..., Any]
SOURCES: dict[str, tuple[Make, Write]] = {
    "folder": (FolderSource, folder),
    "tar": (TarSource, tars),
    "tfrecord": (TFRecordSource, records(TFRECORD)),
    "recordio": (RecordIOSource, records(RECORDIO)),
    "parquet": (ParquetSource, parquet),
    "caffe": (CaffeLMDBSource, caffe),
    "caffe2": (Caffe2LMDBSource, caffe2),
    "coco": (open_coco, coco),
}
MAPPED: dict[str, tuple[Make, Write]] = {
    "huggingface": (open_huggingface, huggingface),
    "arrays": (open_arrays, arrays),
}
"""Sources of objects that the caller has opened, and that stay mapped into memory."""
COLLATE = {"coco": ragged_collate}
"""Collate functions for targets that torch's default cannot collate."""
SHARDS: dict[str, tuple[Make, Write]] = {
    "tar shards": (TarShards, tars),
    "tar records": (TarRecords, tars),
    "tfrecord shards": (TFRecordShards, records(TFRECORD)),
    "recordio shards": (RecordIOShards, records(RECORDIO)),
    "parquet shards": (ParquetShards, parquet),
}
DATASETS = {**SOURCES, **SHARDS}
OPENED = {**DATASETS, **MAPPED}
BY_URL = [name for name in DATASETS if name not in ("folder", "caffe", "caffe2")]


def samples_of(dataset: Any) -> list[Any]:
    return (
        assert_every_cursor(dataset) if isinstance(dataset, ShardedDataset) else read_all(dataset)
    )


def each_path(given: Any, change: Callable[[Path], Any]) -> Any:
    return [change(path) for path in given] if isinstance(given, list) else change(given)


def compressed(given: list[Path], ending: str) -> list[Path]:
    """Return the same files, compressed beside the originals."""
    found = [path.with_name(path.name + ending) for path in given]
    for path, other in zip(given, found, strict=True):
        other.write_bytes(COMPRESS[ending](path.read_bytes()))
    return found


@pytest.mark.parametrize("name", [*SOURCES, *MAPPED])
def test_sources_conform(tmp_path: Path, name: str) -> None:
    """Boxes and masks are compared as the recipes have moved them, too."""
    make, write = OPENED[name]
    given, other = write(tmp_path / "given", 0), write(tmp_path / "other", 1)
    assert_source_conforms_in_threads(
        lambda: make(given), changed=lambda: make(other), collate_fn=COLLATE.get(name)
    )


@pytest.mark.processes
@pytest.mark.parametrize("name", [*SOURCES, *MAPPED])
def test_sources_conform_in_processes(tmp_path: Path, name: str) -> None:
    make, write = OPENED[name]
    given = write(tmp_path / "given", 0)
    assert_source_conforms_in_processes(lambda: make(given), collate_fn=COLLATE.get(name))


@pytest.mark.processes
@pytest.mark.parametrize("name", SHARDS)
def test_shards_conform(tmp_path: Path, name: str) -> None:
    make, write = SHARDS[name]
    given = write(tmp_path, 0)
    assert_shards_conform(lambda: make(given), changed=lambda: make(given[:-1]))


@pytest.mark.parametrize("name", SHARDS)
def test_from_every_cursor_the_rest_is_the_rest(tmp_path: Path, name: str) -> None:
    """A compressed shard has the samples of the plain one. One left early keeps no descriptor."""
    make, write = SHARDS[name]
    given = write(tmp_path, 0)
    found = assert_every_cursor(make(given))
    assert len(found) == 10
    for ending in ("",) if name == "parquet shards" else ("", *COMPRESS):
        paths = compressed(given, ending) if ending else given
        if ending == ".gz" or (ending and name == "tfrecord shards"):
            assert same(assert_every_cursor(make(paths)), found)
        dataset = make(paths[:1])
        gc.collect()
        before = open_descriptors()
        streams = [dataset.read_shard(*dataset.shards(), 0) for _ in range(4)]
        for stream in streams[1:]:
            next(stream)
        assert open_descriptors() > before
        for stream in streams:
            stream.close()
        list(dataset.read_shard(*dataset.shards(), 0))
        assert open_descriptors() == before


@pytest.mark.parametrize("name", OPENED)
def test_copies_at_another_place_and_time_are_the_same_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Given by relative paths, which outlast a change of folder."""
    make, write = OPENED[name]
    given = write(tmp_path / "given", 0)
    dataset = make(given)
    moved = shutil.copytree(tmp_path / "given", tmp_path / "elsewhere" / "deep")
    for path in moved.rglob("*"):
        os.utime(path, (1, 1))
    monkeypatch.chdir(moved)
    copy = make(each_path(given, lambda path: path.relative_to(tmp_path / "given")))
    monkeypatch.chdir("/")
    assert same(samples_of(copy), samples_of(dataset))
    assert copy.fingerprint() == dataset.fingerprint()


@pytest.mark.parametrize("name", BY_URL)
def test_urls_give_the_same_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    make, write = DATASETS[name]
    given = write(tmp_path / "given", 0)
    for path in (tmp_path / "given").rglob("*.*"):
        fsspec.filesystem("memory").pipe(str(path), path.read_bytes())
    local = make(given)
    for protocol in ("file", "memory"):
        remote = make(each_path(given, lambda path: f"{protocol}://{path}"))  # noqa: B023
        assert same(samples_of(remote), samples_of(local))
        assert remote.fingerprint() == local.fingerprint()


_INDEXING = (
    "folder.list_images",
    "tar.source.tar_index",
    "framed.cached_index",
    "parquet.source.read_footers",
    "lmdb.read_leaves",
    "coco.read_annotations",
)


def forbid(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    def forbidden(*arguments: object, **options: object) -> None:
        raise AssertionError("indexed again")

    for name in names:
        monkeypatch.setattr(f"stateful_gpu_loader.datasets.{name}", forbidden)


@pytest.mark.parametrize("name", DATASETS)
def test_a_pickled_copy_is_not_indexed_again_and_names_a_file_that_vanished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A spawned worker gets the index, and lists and parses nothing.

    An OSError stays an OSError, because it may be temporary. The copy has no open files.
    """
    make, write = DATASETS[name]
    dataset = make(write(tmp_path / "given", 0))
    expected, fingerprint = samples_of(dataset), dataset.fingerprint()
    pickled = pickle.dumps(dataset)
    if name in SOURCES:
        forbid(monkeypatch, *_INDEXING)
    copy = pickle.loads(pickled)
    assert same(samples_of(copy), expected)
    assert copy.fingerprint() == fingerprint
    del dataset, copy
    copy = pickle.loads(pickled)
    shutil.rmtree(tmp_path / "given")
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "given")) as caught:
        samples_of(copy)
    assert name not in SOURCES or name.startswith("caffe") or "index = 0" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("tar", "tar.index._build"),
        ("tfrecord", "tfrecord.TFRecordFraming.walk"),
        ("recordio", "recordio.RecordIOFraming.walk"),
    ],
)
def test_an_index_is_built_once_and_kept_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, build: str
) -> None:
    make, write = SOURCES[name]
    given, kept = write(tmp_path / "given", 0), tmp_path / "indices"
    sources = [make(given), make(given, cache_dir=kept)]
    assert len(list((tmp_path / "given").glob(".*.npz"))) == len(list(kept.iterdir())) == len(given)
    forbid(monkeypatch, build)
    sources += [make(given), make(given, cache_dir=kept)]
    assert len({source.fingerprint() for source in sources}) == 1
