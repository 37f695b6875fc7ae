"""Tars by index through the loader, compared with the uninterrupted run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader import StatefulGPULoader, StateMismatch
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets.tar.source import TarSource
from tests.conformance import assert_exact_resume, assert_same_rest, flat, uninterrupted
from tests.datasets.tar.tar_files import photo_entries, write_photo_tars, write_tar

EXECUTIONS: tuple[dict[str, Any], ...] = (
    {"num_workers": 0},
    {"num_workers": 2, "worker_type": "thread"},
    {"num_workers": 2, "worker_type": "process", "multiprocessing_context": "fork"},
)


def make_loader(source: TarSource, **arguments: Any) -> StatefulGPULoader[Any]:
    options: dict[str, Any] = {
        "batch_size": 3,
        "shuffle": True,
        "seed": 11,
        "transform": [T.RandomResizedCrop(24), T.RandomHorizontalFlip()],
        **arguments,
    }
    return StatefulGPULoader(source, **options)


@pytest.mark.fuzz
@pytest.mark.parametrize("target", ["cls", None, ("cls", "txt"), {"y": "cls", "key": "__key__"}])
def test_inline_resume_at_every_batch(tmp_path: Path, target: Any) -> None:
    source = TarSource(write_photo_tars(tmp_path), target=target)
    assert_exact_resume(lambda **changes: make_loader(source, **changes))


@pytest.mark.processes
def test_resume_in_threads_and_in_forked_processes(tmp_path: Path) -> None:
    source = TarSource(write_photo_tars(tmp_path))
    assert_exact_resume(
        lambda **changes: make_loader(source, **{"num_workers": 2, **changes}), other=EXECUTIONS
    )


def test_resume_in_processes_that_inherit_nothing(tmp_path: Path) -> None:
    """The source travels without what it has open."""
    source = TarSource(write_photo_tars(tmp_path))
    source.read(0)
    expected, states = uninterrupted(make_loader(source), 1)
    resumed = make_loader(
        source, num_workers=1, worker_type="process", multiprocessing_context="forkserver"
    )
    resumed.load_state_dict(states[0, 2])
    assert_same_rest(resumed, expected, (0, 2), 1)


def test_the_batches_are_the_samples_of_the_tars(tmp_path: Path) -> None:
    source = TarSource(write_photo_tars(tmp_path), target="__key__")
    batches = [keys for _, keys in make_loader(source, transform=T.Resize((8, 8)))]
    assert sorted(flat(batches)) == [f"photos/{number:04d}" for number in range(13)]


def test_a_state_of_other_tars_is_refused(tmp_path: Path) -> None:
    paths = write_photo_tars(tmp_path)
    loader = make_loader(TarSource(paths))
    next(iter(loader))
    state = loader.state_dict()
    write_tar(paths[1], [(name.replace("photos", "others"), c) for name, c in photo_entries(4, 7)])
    with pytest.raises(StateMismatch, match="dataset") as caught:
        make_loader(TarSource(paths)).load_state_dict(state)
    assert caught.value.field == "dataset"


def test_a_damaged_image_is_replaced_and_a_replaced_tar_is_not(tmp_path: Path) -> None:
    """The bytes of one sample are bad; a file that is another one ends the job."""
    path = write_photo_tars(tmp_path, (6,))[0]
    source = TarSource(path)
    sizes = source._members.members[source._chosen[2]]
    with open(path, "r+b") as file:
        file.seek(int(sizes[0, 0]))
        file.write(bytes(int(sizes[0, 1])))
    loader = make_loader(source, on_bad_sample="replace", transform=T.Resize((8, 8)))
    assert len(list(flat([labels for _, labels in loader]))) == 6
    assert [bad.index for bad in loader.bad_samples.samples] == [2]
    write_tar(path, photo_entries(20, 26))
    with pytest.raises(OSError, match="replaced since it was indexed"):
        list(make_loader(source, on_bad_sample="replace", transform=T.Resize((8, 8))))
