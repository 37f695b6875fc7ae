"""All formats behave alike: the same batches, the same bad samples, and no replaced file."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader import (
    BadSample,
    Caffe2LMDBSource,
    CaffeLMDBSource,
    FolderSource,
    ParquetSource,
    RecordIOSource,
    TarSource,
    TFRecordSource,
)
from stateful_gpu_loader import transforms as T
from tests.conformance import flat, same
from tests.datasets.image_loaders import make_loader
from tests.datasets.lmdb.lmdb_files import encoded_datum, tensor, tensors, write_lmdb
from tests.datasets.parquet.parquet_files import write_table
from tests.datasets.record_files import photos
from tests.datasets.record_kinds import RECORDIO, TFRECORD
from tests.datasets.tar.tar_files import write_tar

Write = Callable[[Path, list[bytes]], Any]
"""Writes a file of images with labels 0, 1, ..."""


def write_members(path: Path, images: list[bytes]) -> None:
    labels = [str(number).encode() for number in range(len(images))]
    pairs = zip(images, labels, strict=True)
    names = ("jpg", "cls")
    write_tar(
        path,
        [
            (f"{i}.{name}", part)
            for i, pair in enumerate(pairs)
            for name, part in zip(names, pair, strict=True)
        ],
    )


def write_rows(path: Path, images: list[bytes]) -> None:
    write_table(path, {"image": images, "label": list(range(len(images)))}, row_group_size=3)


def write_datums(path: Path, images: list[bytes]) -> None:
    write_lmdb(path, [encoded_datum(data, i) for i, data in enumerate(images)], subdir=False)


def write_protos(path: Path, images: list[bytes]) -> None:
    parts = [(tensor("string", data), tensor("int32", [i])) for i, data in enumerate(images)]
    write_lmdb(path, [tensors(*each) for each in parts], subdir=False)


FORMATS: dict[str, tuple[Callable[[Path], Any], Write]] = {
    "tar": (TarSource, write_members),
    "tfrecord": (TFRecordSource, TFRECORD.write),
    "recordio": (RecordIOSource, RECORDIO.write),
    "parquet": (ParquetSource, write_rows),
    "caffe": (CaffeLMDBSource, write_datums),
    "caffe2": (Caffe2LMDBSource, write_protos),
}
FORMAT = pytest.mark.parametrize(("make", "write"), FORMATS.values(), ids=FORMATS)


def test_the_same_pictures_give_the_same_batches(tmp_path: Path) -> None:
    """Every pixel is equal, augmented alike: the format only decides where the bytes lie."""
    images = photos(tmp_path / "photos", 7)
    paths = sorted((tmp_path / "photos").rglob("*.jpg"))[:7]
    expected = list(make_loader(FolderSource.from_paths(paths)))
    for name, (make, write) in FORMATS.items():
        write(tmp_path / name, images)
        assert same(list(make_loader(make(tmp_path / name))), expected), name


@FORMAT
def test_a_damaged_image_is_a_bad_sample(tmp_path: Path, make: Any, write: Write) -> None:
    images = photos(tmp_path / "photos", 6)
    images[2] = b"no image"
    write(tmp_path / "a.file", images)
    source, resize = make(tmp_path / "a.file"), T.Resize((8, 8))
    with pytest.raises(BadSample, match=str(tmp_path / "a.file")):
        list(make_loader(source, transform=resize))
    for on_bad_sample, count in (("drop", 5), ("replace", 6)):
        loader = make_loader(source, transform=resize, on_bad_sample=on_bad_sample)
        assert len(list(flat([labels for _, labels in loader]))) == count
        assert [bad.index for bad in loader.bad_samples.samples] == [2]


def test_a_record_whose_checksum_differs_is_a_bad_sample(tmp_path: Path) -> None:
    places = TFRECORD.write(tmp_path / "a.file", photos(tmp_path / "photos", 6))
    content = bytearray((tmp_path / "a.file").read_bytes())
    content[places[2][0] + 100] ^= 1
    (tmp_path / "a.file").write_bytes(content)
    source = TFRecordSource(tmp_path / "a.file")
    with pytest.raises(BadSample, match=r"record 2, byte \d+: the checksum of its data differs"):
        list(make_loader(source, shuffle=False))
    loader = make_loader(source, shuffle=False, on_bad_sample="drop")
    assert [int(label) for label in flat([labels for _, labels in loader])] == [0, 1, 3, 4, 5]


@FORMAT
def test_a_replaced_file_is_no_bad_sample(tmp_path: Path, make: Any, write: Write) -> None:
    """Nor does it deliver other images of the same size, when a worker opens it."""
    images, path = photos(tmp_path / "photos", 6), tmp_path / "a.file"
    write(path, images)
    pickled = pickle.dumps(make(path))
    write(tmp_path / "other", images[::-1])
    os.replace(tmp_path / "other", path)
    for on_bad_sample in ("replace", "drop"):
        source = pickle.loads(pickled)
        loader = make_loader(source, on_bad_sample=on_bad_sample, transform=T.Resize((8, 8)))
        with pytest.raises(OSError, match=r"another|(replaced|changed) since it was indexed"):
            list(loader)
        assert loader.bad_samples.total == 0
