"""TFRecordSource compared with DALI's reader, and features that only TFRecord has."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from stateful_gpu_loader.datasets import tfrecord
from stateful_gpu_loader.datasets.tfrecord import TFRecordSource
from stateful_gpu_loader.errors import MissingDependency
from tests.datasets.dali import read_by_dali
from tests.datasets.record_files import (
    example,
    imagenet_example,
    photos,
    tfrecord_frame,
    write_records,
    write_tfrecords,
)
from tests.datasets.source_conformance import items

FEATURES = {
    "image/encoded": "string",
    "image/class/label": "int64",
    "image/class/text": "string",
    "image/height": "int64",
    "image/object/bbox/xmin": "float32",
}


@pytest.mark.dali
def test_samples_are_those_of_dalis_reader(tmp_path: Path) -> None:
    """With TFRecordSource's own index, several files, images, integers, floats and text."""
    images = photos(tmp_path / "photos")
    paths = [tmp_path / f"train-{i:05d}-of-00003" for i in range(3)]
    indices = write_tfrecords(paths, images)
    tfrecord = pytest.importorskip("nvidia.dali.tfrecord")
    kinds = {
        "string": tfrecord.FixedLenFeature((), tfrecord.string, ""),
        "int64": tfrecord.VarLenFeature(tfrecord.int64, 0),
        "float32": tfrecord.VarLenFeature(tfrecord.float32, 0.0),
    }
    theirs = read_by_dali(
        "tfrecord",
        path=list(map(str, paths)),
        index_path=list(map(str, indices)),
        features={name: kinds[kind] for name, kind in FEATURES.items()},
    )
    for source in (TFRecordSource(paths, index_paths=indices), TFRecordSource(paths)):
        assert len(source) == len(theirs) == len(images) == 12
        for index, outputs in enumerate(theirs):
            their = dict(zip(FEATURES, outputs, strict=True))
            data, target = source[index]
            assert data.numpy().tobytes() == their["image/encoded"].tobytes() == images[index]
            assert [target] == their["image/class/label"].tolist() == [index * 100]
            record = source.record(index)
            for name, kind in FEATURES.items():
                mine = record[name]
                if kind == "string":
                    assert mine == [their[name].tobytes()]
                else:
                    assert np.array_equal(mine, their[name]), name


def test_the_index_is_that_of_dalis_own_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DALI's wheel installs the tool as tfrecord2idx."""
    tool = Path(sys.executable).with_name("tfrecord2idx")
    if not tool.exists():
        pytest.skip("DALI's tfrecord2idx is not installed")
    path, index = tmp_path / "a.tfrecord", tmp_path / "theirs.idx"
    mine = write_tfrecords([path], photos(tmp_path / "photos", 4))[0]
    monkeypatch.setattr(sys, "argv", [str(tool), str(path), str(index)])
    runpy.run_path(str(tool), run_name="__main__")
    assert index.read_text() == mine.read_text()
    source = TFRecordSource(path, index_paths=index)
    assert items(source) == items(TFRecordSource(path))


def test_damage_is_not_looked_for_if_asked_not_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then google-crc32c is not needed."""
    path = tmp_path / "a.tfrecord"
    framed = bytearray(tfrecord_frame(example(imagenet_example(b"jpeg", 3))))
    framed[-1] ^= 1
    path.write_bytes(framed)
    tfrecord._load.cache_clear()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "google_crc32c", None)
        assert items(TFRecordSource(path, check_crc=False)) == [(b"jpeg", 3)]
        with pytest.raises(MissingDependency, match=r"check_crc.*google-crc32c"):
            TFRecordSource(path)
    source = TFRecordSource(path)
    with pytest.raises(ValueError, match=r"record 0, byte 0.*checksum"):
        source.read(0)


def test_what_is_no_example_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    write_records(path, [tfrecord_frame(b"\x0a\x7fabc"), tfrecord_frame(example({"a": [b"b"]}))])
    source = TFRecordSource(path, image="a", target=None)
    with pytest.raises(ValueError, match=r"a.tfrecord', record 0, byte 0: malformed"):
        source.read(0)
    with pytest.raises(ValueError, match=r"a.tfrecord', record 0, byte 0: malformed"):
        source.record(0)
    assert source[1][0].numpy().tobytes() == b"b"
    with pytest.raises(ValueError, match=r"record 1, byte 21.*'image/encoded'"):
        TFRecordSource(path).read(1)
