"""RecordIOSource compared with DALI's reader, and features that only RecordIO has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from stateful_gpu_loader.datasets.recordio import RecordIOSource
from tests.datasets.dali import read_by_dali
from tests.datasets.record_files import (
    MAGIC,
    image_record,
    photos,
    recordio_frame,
    write_recordio,
    write_records,
)
from tests.datasets.source_conformance import items


def images_with_magic(folder: Path) -> list[bytes]:
    """Return photographs, some with the magic number in, before or after their bytes."""
    images = photos(folder)
    images[3] = images[3][:100] + MAGIC * 3 + images[3][100:]
    images[4] = MAGIC + images[4][:7] + MAGIC
    images[5] = images[5] + bytes(-len(images[5]) % 4) + MAGIC
    return images


def offsets_of(index: Path) -> list[int]:
    return [int(line.split("\t")[1]) for line in index.read_text().splitlines()]


@pytest.mark.dali
@pytest.mark.parametrize("several", [False, True])
def test_samples_are_those_of_dalis_reader(tmp_path: Path, several: bool) -> None:
    """Labels of one and of several numbers, several parts, and an .idx in any order."""
    images, path = images_with_magic(tmp_path / "photos"), tmp_path / "train.rec"
    labels: list[Any] = [[i, 0.5, -i] if several else i + 0.5 for i in range(len(images))]
    index = write_recordio(path, images, labels)
    lines = index.read_text().splitlines(keepends=True)
    index.write_text("".join(lines[5:] + lines[:5]))
    theirs = read_by_dali("mxnet", path=[str(path)], index_path=[str(index)])
    for indices in (index, None):
        source = RecordIOSource(path, index_paths=indices, target="label")
        assert len(source) == len(theirs) == 12
        for number, (image, their) in enumerate(theirs):
            data, label = source[number]
            assert data.numpy().tobytes() == image.tobytes() == images[number]
            assert label.dtype == their.dtype == np.float32
            assert np.array_equal(np.atleast_1d(label), their)
            assert np.array_equal(label, np.float32(labels[number]))


def test_one_index_over_several_files_is_read_as_dali_reads_it(tmp_path: Path) -> None:
    """Its offsets continue from file to file."""
    images, offsets, at = photos(tmp_path / "photos"), [], 0
    paths, indices = [tmp_path / f"{name}.rec" for name in "abc"], []
    for path, part in zip(paths, (images[:5], images[5:6], images[6:]), strict=True):
        indices.append(write_recordio(path, part))
        offsets += [at + offset for offset in offsets_of(indices[-1])]
        at += path.stat().st_size
    whole = tmp_path / "all.idx"
    whole.write_text("".join(f"{i}\t{offset}\n" for i, offset in enumerate(offsets)))
    theirs = read_by_dali("mxnet", path=list(map(str, paths)), index_path=[str(whole)])
    source = RecordIOSource(paths, index_paths=whole, target=("class", "id"))
    assert [data for data, _ in items(source)] == [image.tobytes() for image, _ in theirs]
    assert [data for data, _ in items(source)] == images
    each = RecordIOSource(paths, index_paths=indices, target=("class", "id"))
    assert items(each) == items(source)
    assert each.fingerprint() == source.fingerprint()
    whole.write_text(whole.read_text() + f"99\t{at + 8}\n")
    with pytest.raises(ValueError, match=rf"all.idx'.*byte {at + 8}.*3"):
        RecordIOSource(paths, index_paths=whole)


def test_the_magic_in_the_header_of_an_image_is_no_damage(tmp_path: Path) -> None:
    """The id equals the magic number, so dmlc-core splits the header; DALI 2.4 refuses that."""
    path = tmp_path / "a.rec"
    number = int.from_bytes(MAGIC * 2, "little")
    write_records(path, [recordio_frame(image_record(b"jpeg", 3, id=number))])
    source = RecordIOSource(path, target=("class", "id"))
    assert items(source) == [(b"jpeg", (3, number))]


def test_a_class_is_an_int(tmp_path: Path) -> None:
    """A label that is no class is named."""
    path = tmp_path / "a.rec"
    write_recordio(path, [b"a", b"b", b"c"], [0, 7.0, [9.0]])
    targets = [target for _, target in items(RecordIOSource(path))]
    assert targets == [0, 7, 9]
    assert {type(target) for target in targets} == {int}
    for label in (0.5, float("nan"), float("inf"), [1.0, 2.0]):
        write_recordio(path, [b"a"], [label])
        with pytest.raises(ValueError, match=r"a.rec', record 0, byte 0"):
            RecordIOSource(path).read(0)
        assert RecordIOSource(path, target=None)[0][1] == 0


def test_targets_come_in_the_shape_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    write_recordio(path, [b"a", b"b"], [3, 4])
    assert RecordIOSource(path, target=["class", "id", "id2"])[1][1] == (4, 1001, 0)
    assert RecordIOSource(path, target={"y": "class"})[1][1] == {"y": 4}
    batch = default_collate([target for _, target in items(RecordIOSource(path, target="label"))])
    assert torch.equal(batch, torch.tensor([3.0, 4.0]))
    with pytest.raises(ValueError, match=r"\['flag'\]"):
        RecordIOSource(path, target="flag")


def test_a_whole_record_comes_in_plain_types(tmp_path: Path) -> None:
    """A record without the header of an image is named."""
    path = tmp_path / "a.rec"
    write_recordio(path, [b"jpeg"], [[1.0, 2.0]])
    record = RecordIOSource(path).record(0)
    assert record.pop("label").tolist() == [1.0, 2.0]
    assert record == {"id": 1000, "id2": 0, "image": b"jpeg"}
    write_records(path, [recordio_frame(b"just text")])
    for read in (RecordIOSource(path).read, RecordIOSource(path).record):
        with pytest.raises(ValueError, match=r"a.rec', record 0, byte 0.*9"):
            read(0)


def test_an_index_that_does_not_begin_at_the_beginning_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    index = write_recordio(path, [b"a", b"b", b"c"])
    lines = index.read_text().splitlines(keepends=True)
    index.write_text("".join(lines[1:]))
    with pytest.raises(ValueError, match=r"a.idx'.*byte 36.*72"):
        RecordIOSource(path, index_paths=index)
    index.write_text("")
    with pytest.raises(ValueError, match=r"a.idx'"):
        RecordIOSource(path, index_paths=index)


def test_an_index_of_records_shorter_than_their_header_is_refused(tmp_path: Path) -> None:
    path, index = tmp_path / "train.rec", tmp_path / "bad.idx"
    write_records(path, [recordio_frame(image_record(b"", 1.0)) for _ in range(2)])
    size = path.stat().st_size
    for last in (1, 7, 20, size - 1, size - 7, size - 20):
        index.write_text(f"0\t0\n1\t{last}\n")
        with pytest.raises(ValueError, match=r"train\.rec', record \d.*Remedy: |begin at byte"):
            RecordIOSource(path, index_paths=index)
