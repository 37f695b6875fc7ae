"""Caffe2's LMDBs by index: targets of every kind, also in a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from stateful_gpu_loader.datasets.caffe2_lmdb import Caffe2LMDBSource
from tests.datasets.lmdb.lmdb_files import decoded, tensor, tensors, write_lmdb
from tests.images import photograph

IMAGE = tensor("string", b"\xff\xd8\xff")
LABEL, BOX = tensor("int32", [3]), tensor("int32", [1, 2, 30, 40])


def source_of(path: Path, *records: bytes, **arguments: Any) -> Caffe2LMDBSource:
    return Caffe2LMDBSource(write_lmdb(path / "db", records), **arguments)


@pytest.mark.parametrize("channel_order", ["BGR", "RGB"])
def test_pixels_are_decoded_as_they_were(tmp_path: Path, channel_order: Any) -> None:
    """Records without labels are numbered."""
    pixels = np.asarray(photograph("coffee"))[:90, :120]
    stored = pixels[:, :, ::-1] if channel_order == "BGR" else pixels
    image = tensor("byte", stored.tobytes(), dims=stored.shape)
    arguments: dict[str, Any] = {"channel_order": channel_order, "label_type": 4}
    source = source_of(tmp_path, *[tensors(image)] * 3, **arguments)
    assert np.array_equal(decoded(source), pixels)
    assert [source[index][1] for index in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("protos", "arguments", "expected"),
    [
        ([tensor("int32", [-6])], {}, -6),
        ([tensor("float", [0.5])], {}, 0.5),
        (
            [LABEL],
            {"label_type": 1, "num_labels": 4},
            torch.tensor([0, 0, 0, 1], dtype=torch.int32),
        ),
        ([tensor("float", [0.5, 2])], {"label_type": 2}, torch.tensor([0.5, 2])),
        (
            [LABEL, tensor("float", [0.25])],
            {"label_type": 3, "num_labels": 4},
            torch.tensor([0, 0, 0, 0.25]),
        ),
        ([], {"label_type": 4}, 0),
        ([tensor("int64", [9])], {"label_type": 4, "additional_inputs": 1}, (torch.tensor([9]),)),
        ([LABEL, BOX], {"bbox": True}, (3, torch.tensor([1, 2, 30, 40], dtype=torch.int32))),
        (
            [LABEL, tensor("float", [1.5]), BOX],
            {"additional_inputs": 1, "bbox": True},
            (3, torch.tensor([1.5]), torch.tensor([1, 2, 30, 40], dtype=torch.int32)),
        ),
    ],
)
def test_targets_are_of_the_kind_asked_for_and_make_a_batch(
    tmp_path: Path, protos: list[bytes], arguments: dict[str, Any], expected: Any
) -> None:
    source = source_of(tmp_path, tensors(IMAGE, *protos), **arguments)
    data, target = source[0]
    assert data.tolist() == [255, 216, 255]
    torch.testing.assert_close(target, expected, rtol=0, atol=0)
    assert type(target) is type(expected)
    batch = default_collate([target, target])
    torch.testing.assert_close(batch, default_collate([expected, expected]), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (tensors(IMAGE, LABEL)[:-2], "field 1 claims .* bytes"),
        (
            tensors(IMAGE, LABEL[:-1]),
            "tensor 1, which begins at byte 11 of the record: .* at byte 2",
        ),
        (b"", "the record holds no tensor"),
    ],
)
def test_a_corrupt_record_is_named(tmp_path: Path, record: bytes, reason: str) -> None:
    source = source_of(tmp_path, tensors(IMAGE, LABEL), record)
    with pytest.raises(ValueError, match=rf"db'.*'00000001': .*{reason}"):
        source[1]
    assert source[0][1] == 3


def test_arguments_that_mean_nothing_are_named(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "db", [tensors(IMAGE, LABEL)])
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"label_type": 5}, "label_type is 5. Remedy: pass 0 to 4"),
        ({"label_type": -1}, "label_type is -1"),
        ({"label_type": 1}, "Remedy: pass num_labels"),
        ({"additional_inputs": -1}, "additional_inputs is -1"),
        ({"channel_order": "rgb"}, "channel_order is 'rgb'"),
    ]
    for arguments, reason in wrong:
        with pytest.raises(ValueError, match=reason):
            Caffe2LMDBSource(path, **arguments)


def test_the_fingerprint_holds_every_argument(tmp_path: Path) -> None:
    """With other labels, the same file is another dataset."""
    path = write_lmdb(tmp_path / "db", [tensors(IMAGE, LABEL, tensor("float", [1]), BOX)])
    arguments: list[dict[str, Any]] = [
        {},
        {"label_type": 1, "num_labels": 4},
        {"label_type": 1, "num_labels": 5},
        {"label_type": 3, "num_labels": 4},
        {"additional_inputs": 1},
        {"bbox": True},
        {"channel_order": "RGB"},
    ]
    assert len({Caffe2LMDBSource(path, **each).fingerprint() for each in arguments}) == 7
