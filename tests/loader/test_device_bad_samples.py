"""Bad images on the device: their batch stays, and is the same on every run (G4, law 6)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import BadSample, FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from tests.bad_sample_loaders import assert_same_run, assert_states_follow, modes
from tests.conformance import assert_exact_resume, copy_of, same
from tests.engine.makers.damaged_images import (
    DAMAGE,
    NUM_PHOTOS,
    RECIPES,
    Redirected,
    write_damaged_photos,
)
from tests.fake_gpu import FakeGpu, fake_gpu

__all__ = ["fake_gpu"]

EXECUTIONS: list[dict[str, Any]] = [
    {},
    {"num_workers": 1, "prefetch_factor": 4},
    {"num_workers": 2},
    {"num_workers": 2, "worker_type": "process", "prefetch_factor": 1},
]
Loader = StatefulGPULoader[Any]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_damaged_photos(tmp_path_factory.mktemp("damaged"))


def make(root: Path, **arguments: Any) -> Loader:
    return StatefulGPULoader(
        FolderSource(root),
        **{
            "batch_size": 4,
            "shuffle": True,
            "seed": 3,
            "device": "cuda",
            "transform": RECIPES,
            "on_bad_sample": "drop",
            **arguments,
        },
    )


@pytest.mark.fuzz
@modes
def test_any_workers_make_the_same_batches_and_record(
    mode: str, photos: Path, fake_gpu: FakeGpu
) -> None:
    assert_same_run(partial(make, photos, on_bad_sample=mode), EXECUTIONS)


@modes
def test_the_samples_are_those_that_a_cpu_loader_takes(
    mode: str, photos: Path, fake_gpu: FakeGpu
) -> None:
    """The same replacements by the same keys, and the same record."""
    loaders = [
        make(photos, on_bad_sample=mode, transform=[T.Resize((16, 16))], **kind)
        for kind in ({}, {"device": None, "decoder": "torchvision"})
    ]
    runs = [[targets.tolist() for _, targets in loader] for loader in loaders]
    assert runs[0] == runs[1]
    records = [[(b.index, b.position) for b in loader.bad_samples.samples] for loader in loaders]
    assert records[0] == records[1]
    assert {index for index, _ in records[0]} == set(DAMAGE)


@pytest.mark.processes
@modes
def test_a_sound_image_is_untouched_by_a_bad_one_in_its_batch(
    mode: str, photos: Path, fake_gpu: FakeGpu
) -> None:
    """Law 1: it is what it is alone."""
    alone = make(photos, on_bad_sample="drop", batch_size=1, shuffle=False)
    single = {}
    for index, (image, _) in enumerate(alone):
        single[index] = image[0].clone()
    together = make(photos, on_bad_sample=mode, batch_size=NUM_PHOTOS, shuffle=False)
    ((images, _),) = [copy_of(batch) for batch in together]
    sound = [index for index in range(NUM_PHOTOS) if index not in DAMAGE]
    places = sound if mode == "replace" else range(len(sound))
    for place, index in zip(places, sound, strict=True):
        assert same(images[place], single[index])


@pytest.mark.fuzz
@modes
def test_every_state_resumes_exactly(mode: str, photos: Path, fake_gpu: FakeGpu) -> None:
    build = partial(make, photos, on_bad_sample=mode)
    assert_exact_resume(build, other=tuple(EXECUTIONS), every=2)
    assert_states_follow(build, EXECUTIONS)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_raise_names_the_image_and_the_loader_goes_on(
    photos: Path, fake_gpu: FakeGpu, num_workers: int
) -> None:
    loader = make(photos, batch_size=1, on_bad_sample="raise", num_workers=num_workers)
    batches, raised, delivered = iter(loader), set(), 0
    while True:
        try:
            next(batches)
        except BadSample as error:
            raised.add(error.index)
        except StopIteration:
            break
        else:
            delivered += 1
    assert raised == set(DAMAGE)
    assert delivered == NUM_PHOTOS - len(DAMAGE)


def test_what_is_known_to_be_bad_is_not_read_again(photos: Path, fake_gpu: FakeGpu) -> None:
    first = make(photos)
    list(first)
    source = Redirected(FolderSource(photos))
    resumed = StatefulGPULoader(
        source,
        batch_size=4,
        shuffle=True,
        seed=3,
        device="cuda",
        transform=[T.Resize((8, 8))],
        on_bad_sample="drop",
    )
    state = {**first.state_dict(), "fingerprint": resumed.state_dict()["fingerprint"]}
    resumed.load_state_dict(state)
    list(resumed)
    assert set(source.reads) == set(range(NUM_PHOTOS)) - set(DAMAGE)


class FailsTwice(Redirected):
    """Its storage fails at the first two readings of each sample."""

    def read(self, index: int) -> Any:
        sample = super().read(index)
        if self.reads[index] < 3:
            raise OSError(5, "Input/output error")
        return sample


def test_an_error_of_the_storage_is_tried_again_and_no_samples_fault(
    photos: Path, fake_gpu: FakeGpu
) -> None:
    """Law 6: once by the reader, then by the stage."""
    loader = make(photos)
    expected = [copy_of(batch) for batch in loader]
    flaky = StatefulGPULoader(
        FailsTwice(FolderSource(photos)),
        batch_size=4,
        shuffle=True,
        seed=3,
        device="cuda",
        transform=RECIPES,
        on_bad_sample="drop",
        num_workers=2,
    )
    assert same([copy_of(batch) for batch in flaky], expected)
    assert flaky.bad_samples == loader.bad_samples


def test_memory_that_runs_out_is_no_samples_fault(photos: Path, fake_gpu: FakeGpu) -> None:
    loader = make(photos)
    fake_gpu.decoder.failures = [torch.OutOfMemoryError("CUDA out of memory.")] * 2
    batches = iter(loader)
    with pytest.raises(torch.OutOfMemoryError, match=r"nothing is lost"):
        next(batches)
    expected = make(photos)
    assert same([copy_of(batch) for batch in batches], [copy_of(batch) for batch in expected])
    assert loader.bad_samples == expected.bad_samples
