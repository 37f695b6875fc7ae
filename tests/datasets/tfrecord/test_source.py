"""TFRecordSource against DALI's reader, and what only TFRecords have."""

from __future__ import annotations

import gzip
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from stateful_gpu_loader.datasets import tfrecord
from stateful_gpu_loader.datasets.tfrecord import TFRecordSource
from stateful_gpu_loader.errors import MissingDependency
from tests.datasets.dali_records import dali_samples, needs_dali
from tests.datasets.record_files import (
    example,
    imagenet_example,
    photos,
    tfrecord_frame,
    write_records,
    write_tfrecords,
)
from tests.datasets.record_kinds import items

FEATURES = {
    "image/encoded": "string",
    "image/class/label": "int64",
    "image/class/text": "string",
    "image/height": "int64",
    "image/object/bbox/xmin": "float32",
}


@pytest.mark.dali
@needs_dali
def test_samples_are_those_of_dalis_reader(tmp_path: Path) -> None:
    """With its own index, over several files, image, integers, floats and text."""
    images = photos(tmp_path / "photos")
    paths = [tmp_path / f"train-{i:05d}-of-00003" for i in range(3)]
    indices = write_tfrecords(paths, images)
    theirs = dali_samples("tfrecord", paths, indices, tmp_path, FEATURES)
    for source in (TFRecordSource(paths, index_paths=indices), TFRecordSource(paths)):
        assert len(source) == len(theirs) == len(images) == 12
        for index, their in enumerate(theirs):
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
    """tfrecord2idx, as DALI's wheel installs it."""
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


def test_every_flipped_byte_of_a_record_is_noticed(tmp_path: Path) -> None:
    """With checksums nothing wrong is ever delivered."""
    path = tmp_path / "a.tfrecord"
    frames = [tfrecord_frame(example(imagenet_example(b"jpeg" * 9, i))) for i in range(3)]
    places = write_records(path, frames)
    source, content = TFRecordSource(path), path.read_bytes()
    offset, size = places[1]
    for at in range(offset, offset + size):
        damaged = bytearray(content)
        damaged[at] ^= 0x01
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"record 1, byte {offset}: the checksum of"):
            source.read(1)
    assert [source.read(index).target for index in (0, 2)] == [0, 2]


def test_damage_is_not_looked_for_if_asked_not_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And then google-crc32c is not needed."""
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
    with pytest.raises(ValueError, match="record 0, byte 0: the checksum of its data differs"):
        source.read(0)


def test_what_is_no_example_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    write_records(path, [tfrecord_frame(b"\x0a\x7fabc"), tfrecord_frame(example({"a": [b"b"]}))])
    source = TFRecordSource(path, image="a", target=None)
    with pytest.raises(ValueError, match=r"a.tfrecord', record 0, byte 0: malformed proto"):
        source.read(0)
    with pytest.raises(ValueError, match=r"a.tfrecord', record 0, byte 0: malformed proto"):
        source.record(0)
    assert source[1][0].numpy().tobytes() == b"b"
    with pytest.raises(ValueError, match="record 1, byte 21: it has no feature 'image/encoded'"):
        TFRecordSource(path).read(1)


def test_gzip_without_its_ending_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(gzip.compress(tfrecord_frame(b"abc")))
    with pytest.raises(ValueError, match=r"compressed by gzip. Remedy: decompress it; or end its"):
        TFRecordSource(path)


def test_bad_targets_are_refused_at_once(tmp_path: Path) -> None:
    write_tfrecords([tmp_path / "a.tfrecord"], [b"jpeg"])
    with pytest.raises(ValueError, match="variable_length names"):
        TFRecordSource(tmp_path / "a.tfrecord", variable_length="boxes")
