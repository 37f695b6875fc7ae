"""DALI's own CPU readers return the same samples from the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stateful_gpu_loader.datasets.caffe2_lmdb import Caffe2LMDBSource
from stateful_gpu_loader.datasets.caffe_lmdb import CaffeLMDBSource
from stateful_gpu_loader.datasets.source import Source
from tests.datasets.dali import read_by_dali
from tests.datasets.lmdb.lmdb_files import (
    decoded,
    encoded_datum,
    message,
    photo_files,
    raw_datum,
    tensor,
    tensors,
    write_lmdb,
)
from tests.images import photograph

IMAGE = tensor("string", b"\xff\xd8\xff")
BOX = tensor("int32", [1, 2, 30, 40])
PIXELS = np.asarray(photograph("coffee"))[:20, :30]


def as_dali_reads(reader: str, paths: list[Path], **arguments: Any) -> list[list[Any]]:
    return read_by_dali(reader, path=list(map(str, paths)), **arguments)


def as_we_read(source: Source) -> list[list[Any]]:
    """Return the file, and each part of the target as an array of at least one dimension."""
    samples = []
    for data, target in (source[index] for index in range(len(source))):
        parts = target if isinstance(target, tuple) else (target,)
        samples.append([data.numpy(), *(np.atleast_1d(np.asarray(part)) for part in parts)])
    return samples


def assert_agree(ours: list[list[Any]], theirs: list[list[Any]], *, dtypes: bool = False) -> None:
    assert len(ours) == len(theirs) > 0
    for mine, other in zip(ours, theirs, strict=True):
        for one, two in zip(mine, other, strict=True):
            assert np.array_equal(one, two)
            assert not dtypes or one.dtype == two.dtype


def test_caffe_agrees_over_several_paths(tmp_path: Path) -> None:
    """Bytes and labels, sorted by key, path by path: the order of DALI's epoch."""
    files = photo_files(tmp_path / "photos", num_classes=3)
    parts = [files[:9], files[9:10], files[10:]]
    paths = [
        write_lmdb(
            tmp_path / name,
            {f"{len(part) - i}_{i}": encoded_datum(*item) for i, item in enumerate(part)},
        )
        for name, part in zip("cab", parts, strict=True)
    ]
    assert_agree(as_we_read(CaffeLMDBSource(paths)), as_dali_reads("caffe", paths))


def test_caffe_agrees_on_labels_of_any_sign_on_missing_flags_and_without_labels(
    tmp_path: Path,
) -> None:
    labels = (0, 1, -1, 2**31 - 1, -(2**31))
    records = [encoded_datum(b"abc", label, flag=None) for label in labels]
    records += [message((5, 3), (99, b"?"), (7, 1), (4, b"x"), (4, b"later"))]
    path = write_lmdb(tmp_path / "db", records)
    assert_agree(as_we_read(CaffeLMDBSource(path)), as_dali_reads("caffe", [path]))
    path = write_lmdb(tmp_path / "bare", [message((4, each), (7, 1)) for each in (b"ab", b"c")])
    theirs = as_dali_reads("caffe", [path], label_available=False)
    ours = as_we_read(CaffeLMDBSource(path, label_available=False))
    assert_agree([sample[:1] for sample in ours], theirs)


def test_caffes_pixels_are_dalis_bytes(tmp_path: Path) -> None:
    """DALI returns the stored planes, and calls their shape [height, width, channels]."""
    path = write_lmdb(tmp_path / "db", [raw_datum(PIXELS, 6)])
    [[stored, label]] = as_dali_reads("caffe", [path])
    assert label.tolist() == [6]
    planes = stored.reshape(3, 20, 30)
    assert np.array_equal(planes[::-1].transpose(1, 2, 0), decoded(CaffeLMDBSource(path)))


def test_caffe2s_pixels_are_dalis(tmp_path: Path) -> None:
    """Neither Caffe2 nor DALI converts BGR."""
    for name, pixels in (("color", PIXELS), ("grey", PIXELS[:, :, 1])):
        record = tensors(tensor("byte", pixels.tobytes(), dims=pixels.shape), tensor("int32", [1]))
        path = write_lmdb(tmp_path / name, [record])
        [[stored, _]] = as_dali_reads("caffe2", [path])
        shown = decoded(Caffe2LMDBSource(path))
        assert np.array_equal(np.broadcast_to(stored, (20, 30, 3))[:, :, ::-1], shown)


@pytest.mark.parametrize(
    ("label_type", "label", "additional_inputs", "bbox"),
    [
        (0, [tensor("int32", [-7])], 0, False),
        (0, [tensor("float", [0.5])], 1, True),
        (2, [tensor("float", [0.5, -2.5, 3.0])], 3, False),
        (2, [tensor("float", [1.5, 2.5], packed=False)], 1, False),
        (2, [tensor("int32", [4, -5])], 0, True),
        (4, [], 0, False),
        (4, [], 3, True),
    ],
)
def test_caffe2_agrees_on_labels_additional_tensors_and_boxes(
    tmp_path: Path, label_type: int, label: list[bytes], additional_inputs: int, bbox: bool
) -> None:
    """Values and dtypes of all outputs after the image. Older writers packed no numbers."""
    further = [
        tensor("int64", [2**40, -1], packed=False),
        tensor("float", [1.5, 2]),
        tensor("int32", [3]),
    ]
    protos = [*label, *further[:additional_inputs], *[BOX] * bbox]
    path = write_lmdb(tmp_path / "db", [tensors(IMAGE, *protos)] * 2)
    arguments: dict[str, Any] = {
        "label_type": label_type,
        "additional_inputs": additional_inputs,
        "bbox": bbox,
    }
    source = Caffe2LMDBSource(path, **arguments)
    theirs = as_dali_reads("caffe2", [path], **arguments)
    if not protos:
        assert_agree([sample[:1] for sample in as_we_read(source)], theirs)
        return
    assert_agree(as_we_read(source), theirs)
    parts = source[0][1] if isinstance(source[0][1], tuple) else (source[0][1],)
    for part, other in zip(parts, theirs[0][1:], strict=True):
        assert not isinstance(part, torch.Tensor) or part.numpy().dtype == other.dtype


@pytest.mark.parametrize("kind", ["int32", "float"])
def test_caffe2_agrees_on_sparse_labels(tmp_path: Path, kind: str) -> None:
    """DALI 2.4 declares one output too many, and fails unless a box of four ints fills it.

    It looks for the box after a tensor that it skips, so these records have both.
    """
    rows: list[list[int]] = [[3, 1], [], [0, 0, 4]]
    records = [tensors(IMAGE, tensor(kind, row), tensor("int32", [9]), BOX) for row in rows]
    path = write_lmdb(tmp_path / "db", records)
    theirs = as_dali_reads("caffe2", [path], label_type=1, num_labels=5)
    ours = as_we_read(Caffe2LMDBSource(path, label_type=1, num_labels=5))
    assert_agree(ours, [sample[:2] for sample in theirs], dtypes=True)


@pytest.mark.parametrize("kind", ["int32", "float"])
def test_caffe2_agrees_on_weighted_labels(tmp_path: Path, kind: str) -> None:
    """DALI 2.4 returns the weights as an additional tensor too, and fails without a box."""
    rows: list[tuple[list[int], list[float]]] = [([3, 1], [0.5, -2]), ([], []), ([4, 4], [1, 2])]
    records = [
        tensors(IMAGE, tensor(kind, labels), tensor("float", weights), BOX)
        for labels, weights in rows
    ]
    path = write_lmdb(tmp_path / "db", records)
    layout = {"label_type": 3, "num_labels": 5}
    theirs = as_dali_reads("caffe2", [path], **layout, additional_inputs=1)
    ours = as_we_read(Caffe2LMDBSource(path, label_type=3, num_labels=5))
    assert_agree(ours, [sample[:2] for sample in theirs], dtypes=True)
