"""LMDBs through the loader: exact from every batch, on any number and kind of workers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from stateful_gpu_loader import BadSample, FolderSource, StateMismatch
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets.caffe2_lmdb import Caffe2LMDBSource
from stateful_gpu_loader.datasets.caffe_lmdb import CaffeLMDBSource
from stateful_gpu_loader.datasets.source import Source
from tests.conformance import assert_exact_resume, same, uninterrupted
from tests.datasets.image_loaders import EXECUTIONS, make_loader
from tests.datasets.lmdb.lmdb_files import (
    encoded_datum,
    photo_files,
    raw_datum,
    tensor,
    tensors,
    write_lmdb,
)
from tests.images import photograph

PIXELS = np.asarray(photograph("rocket"))[:64, :80]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs in class folders, and the same in databases of both kinds, in two files."""
    root = tmp_path_factory.mktemp("lmdb")
    files = photo_files(root / "photos", num_classes=2, per_class=6)
    raw = [raw_datum(PIXELS, 2), raw_datum(PIXELS[:, :, 0], 3)]
    datums = [encoded_datum(*file) for file in files]
    write_lmdb(root / "caffe", datums[:7])
    write_lmdb(root / "caffe.mdb", datums[7:] + raw, subdir=False)
    vectors = [
        tensors(tensor("string", data), tensor("int32", [label, 3]), tensor("float", [0.5, 0.25]))
        for data, label in files
    ]
    write_lmdb(root / "caffe2", vectors[:5])
    write_lmdb(root / "caffe2.mdb", vectors[5:], subdir=False)
    return root


def caffe(root: Path) -> Source:
    return CaffeLMDBSource([root / "caffe", root / "caffe.mdb"])


def caffe2(root: Path) -> Source:
    return Caffe2LMDBSource([root / "caffe2", root / "caffe2.mdb"], label_type=3, num_labels=4)


@pytest.mark.processes
@pytest.mark.parametrize("make_source", [caffe, caffe2])
def test_every_batch_resumes_exactly_on_threads_and_forked_processes(
    root: Path, make_source: Any
) -> None:
    """The source is read here before each fork, so that a shared handle would show."""
    source = make_source(root)
    source[0]
    assert_exact_resume(partial(make_loader, source), other=EXECUTIONS)


@pytest.mark.parametrize("make_source", [caffe, caffe2])
def test_workers_that_inherit_nothing_resume_what_was_read_here(
    root: Path, make_source: Any
) -> None:
    source = make_source(root)
    expected, states = uninterrupted(make_loader(source), 1)
    resumed = make_loader(
        source, num_workers=2, worker_type="process", multiprocessing_context="forkserver"
    )
    resumed.load_state_dict(states[0, 2])
    assert same([*resumed], expected[0][2:])


def test_batches_are_those_of_the_folder_the_pictures_came_from(root: Path) -> None:
    """Pixel for pixel, augmented alike: a source is nothing but where the bytes lie."""
    folder = FolderSource(root / "photos")
    expected = [*make_loader(Subset(folder, range(7)))]
    assert same([*make_loader(CaffeLMDBSource(root / "caffe"))], expected)


def test_raw_pixels_are_delivered_beside_files(root: Path) -> None:
    batches = [*make_loader(caffe(root), shuffle=False, transform=[T.CenterCrop(64)])]
    assert torch.cat([batch[1] for batch in batches]).tolist() == [0] * 6 + [1] * 6 + [2, 3]
    expected = torch.from_numpy(PIXELS[:, 8:72].copy()).permute(2, 0, 1)
    assert torch.equal(batches[-1][0][-2], expected)
    assert torch.equal(batches[-1][0][-1], expected[[0, 0, 0]])


def test_weighted_labels_come_as_a_matrix(root: Path) -> None:
    images, labels = next(iter(make_loader(caffe2(root), shuffle=False)))
    assert images.shape == (3, 3, 24, 24)
    assert torch.equal(labels, torch.tensor([[0.5, 0, 0, 0.25]] * 3))


def test_a_state_of_another_database_is_refused(root: Path, tmp_path: Path) -> None:
    """The same keys with other labels are another data set."""
    loader = make_loader(CaffeLMDBSource(root / "caffe"))
    next(iter(loader))
    files = photo_files(tmp_path / "photos", num_classes=2, per_class=6)
    other = [encoded_datum(data, label + 1) for data, label in files[:7]]
    changed = make_loader(CaffeLMDBSource(write_lmdb(tmp_path / "db", other)))
    with pytest.raises(StateMismatch, match="dataset"):
        changed.load_state_dict(loader.state_dict())


@pytest.mark.parametrize("change", [{}, {"num_workers": 2, "worker_type": "process"}])
def test_a_corrupt_record_is_a_bad_sample(tmp_path: Path, change: dict[str, Any]) -> None:
    """Named by path and key; or dropped, and the others are delivered."""
    files = photo_files(tmp_path / "photos", num_classes=1, per_class=5)
    records = [encoded_datum(*file) for file in files]
    records[3] = records[3][:-9]
    source = CaffeLMDBSource(write_lmdb(tmp_path / "db", records))
    plain: dict[str, Any] = {"shuffle": False, "transform": [T.Resize((24, 24))], **change}
    with pytest.raises(BadSample, match=r"db.*record '00000003'.*malformed protocol buffer"):
        list(make_loader(source, **plain))
    loader = make_loader(source, on_bad_sample="drop", **plain)
    assert sum(len(images) for images, _ in loader) == 4
    assert [bad.index for bad in loader.bad_samples.samples] == [3]


def test_a_database_that_changed_is_no_bad_sample(tmp_path: Path) -> None:
    """The storage failed: dropping every record in silence would be wrong."""
    files = photo_files(tmp_path / "photos", num_classes=1, per_class=5)
    records = [encoded_datum(*file) for file in files]
    path = write_lmdb(tmp_path / "db", records)
    loader = make_loader(CaffeLMDBSource(path), on_bad_sample="drop")
    fewer = write_lmdb(tmp_path / "fewer", records[:2])
    (fewer / "data.mdb").replace(path / "data.mdb")
    loader.dataset._environments[0]._opened.close()
    loader.dataset._environments[0]._opened = None
    with pytest.raises(OSError, match="another database took its place"):
        list(loader)
