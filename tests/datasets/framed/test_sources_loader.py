"""TFRecord and RecordIO through the loader, compared with the uninterrupted run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from stateful_gpu_loader import BadSample, StateMismatch
from stateful_gpu_loader.datasets.recordio import RecordIOSource
from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.datasets.tfrecord import TFRecordSource
from tests.conformance import assert_exact_resume, flat, same, uninterrupted
from tests.datasets.image_loaders import make_loader
from tests.datasets.record_files import photos, write_recordio, write_tfrecords

THREADS = {"num_workers": 2, "worker_type": "thread"}
FORKED = {"num_workers": 2, "worker_type": "process", "multiprocessing_context": "fork"}
APART = {"num_workers": 2, "worker_type": "process", "multiprocessing_context": "forkserver"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """13 photographs in three files of each format."""
    root = tmp_path_factory.mktemp("records")
    images = photos(root / "photos", 13)
    write_tfrecords([root / f"{i}.tfrecord" for i in range(3)], images)
    for number in range(3):
        part = range(number * 5, min(number * 5 + 5, 13))
        write_recordio(root / f"{number}.rec", [images[i] for i in part], list(part))
    return root


def tfrecord(root: Path) -> Source:
    return TFRecordSource(
        root / "*.tfrecord",
        target={"y": "image/class/label", "text": "image/class/text", "size": "image/height"},
        variable_length="image/height",
    )


def recordio(root: Path) -> Source:
    return RecordIOSource(root / "*.rec", target=("class", "label", "id"))


SOURCES = pytest.mark.parametrize("make_source", [tfrecord, recordio])


@pytest.mark.processes
@SOURCES
def test_every_batch_resumes_exactly_on_threads_and_forked_processes(
    root: Path, make_source: Callable[[Path], Source]
) -> None:
    """The source is read here before each fork, so that a shared handle would show."""
    source = make_source(root)
    source[0]
    assert_exact_resume(partial(make_loader, source), other=(THREADS, FORKED))


@SOURCES
def test_workers_that_inherit_nothing_resume_what_was_read_here(
    root: Path, make_source: Callable[[Path], Source]
) -> None:
    """The source travels with its index, and without its descriptors."""
    source = make_source(root)
    source[0]
    expected, states = uninterrupted(make_loader(source), 1)
    resumed = make_loader(source, **APART)
    resumed.load_state_dict(states[0, 2])
    assert same([*resumed], expected[0][2:])


def test_both_formats_give_the_same_pictures(root: Path) -> None:
    """Pixel for pixel: the order and the augmentations depend on positions alone."""
    images = [
        [batch[0] for batch in make_loader(make_source(root))]
        for make_source in (tfrecord, recordio)
    ]
    assert same(images[0], images[1])


def test_targets_are_collated(root: Path) -> None:
    _, targets = next(iter(make_loader(tfrecord(root), shuffle=False)))
    assert torch.equal(targets["y"], torch.tensor([0, 100, 200]))
    assert targets["text"] == [b"tench, Tinca tinca"] * 3
    assert torch.equal(targets["size"], torch.tensor([[400]] * 3))
    _, targets = next(iter(make_loader(recordio(root), shuffle=False)))
    assert torch.equal(targets[0], torch.tensor([0, 1, 2]))
    assert torch.equal(targets[1], torch.tensor([0.0, 1.0, 2.0]))
    assert torch.equal(targets[2], torch.tensor([1000, 1001, 1002]))


@SOURCES
def test_a_state_of_other_content_is_refused(
    root: Path, tmp_path: Path, make_source: Callable[[Path], Source]
) -> None:
    """And one of the same content elsewhere is taken."""
    loader = make_loader(make_source(root))
    next(iter(loader))
    state = loader.state_dict()
    for path in [*root.glob("*.tfrecord"), *root.glob("*.rec")]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    make_loader(make_source(tmp_path)).load_state_dict(state)
    write_tfrecords([tmp_path / "1.tfrecord"], photos(tmp_path / "others", 4))
    write_recordio(tmp_path / "1.rec", photos(tmp_path / "others", 5))
    with pytest.raises(StateMismatch, match="dataset") as caught:
        make_loader(make_source(tmp_path)).load_state_dict(state)
    assert caught.value.field == "dataset"


def test_a_damaged_record_is_a_bad_sample(root: Path, tmp_path: Path) -> None:
    """Named, or another takes its place; the others come as they would."""
    path = tmp_path / "a.tfrecord"
    write_tfrecords([path], photos(tmp_path / "photos", 6))
    source = TFRecordSource(path)
    content = bytearray(path.read_bytes())
    offset = source._offsets[0][2]
    content[offset + 100] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadSample, match=r"record 2, byte \d+: the checksum of its data differs"):
        list(make_loader(source, shuffle=False))
    batches = [*make_loader(source, shuffle=False, on_bad_sample="drop")]
    assert [int(label) for label in flat([labels for _, labels in batches])] == [
        0,
        100,
        300,
        400,
        500,
    ]
    batches = [*make_loader(source, on_bad_sample="replace")]
    assert sum(len(labels) for _, labels in batches) == 6
