"""Readers and generators of DALI and of this package, in both kinds of Checkpoint (E2)."""

from __future__ import annotations

import itertools
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import nvidia.dali.experimental.dynamic as ndd
import pytest

from stateful_gpu_loader import RNG, FolderSource, ShuffledSampler, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.checkpoint import Checkpoint
from stateful_gpu_loader.engine.workers.worker_start import dali_is_live
from stateful_gpu_loader.errors import CheckpointError, StateMismatch
from stateful_gpu_loader.integrations.dali_dynamic import StatefulReader
from tests.conformance import copy_of, same
from tests.documents import ROOT, run_page
from tests.integrations.in_dynamic_mode.readers import BATCH, after, arguments, build, content


def augmented(jpegs: Any, rng: Any) -> list[np.ndarray[Any, Any]]:
    images = ndd.decoders.image(jpegs, device="cpu")
    angles = ndd.random.uniform(batch_size=BATCH, range=(-30.0, 30.0), rng=rng, device="cpu")
    rotated = ndd.rotate(images, angle=angles, fill_value=0)
    return [np.asarray(image) for image in rotated.evaluate().tensors]


Kind = type[Checkpoint] | Any
CHECKPOINTS = pytest.mark.parametrize(
    "kind", [Checkpoint, ndd.checkpoint.Checkpoint], ids=["ours", "DALI's"]
)


@CHECKPOINTS
def test_reader_and_rng_of_dali_resume_from_a_file(kind: Kind, root: str, tmp_path: Path) -> None:
    """E2: labels and pixels as in the uninterrupted run, and only the remainder."""
    pattern = str(tmp_path / "run_{seq:04d}.json")

    def rest(reader: StatefulReader, rng: Any) -> list[Any]:
        return [augmented(jpegs, rng) for jpegs, _ in reader.next_epoch(BATCH)]

    reader, rng, checkpoint = build(root), ndd.random.RNG(seed=42), kind()
    checkpoint.register(reader, "reader")
    checkpoint.register(rng, "rng")
    epoch = reader.next_epoch(BATCH)
    for jpegs, _ in itertools.islice(epoch, 2):
        augmented(jpegs, rng)
    checkpoint.collect()
    checkpoint.save(pattern)
    expected = [augmented(jpegs, rng) for jpegs, _ in epoch]
    assert len(expected) == 2

    reader, rng, checkpoint = build(root), ndd.random.RNG(), kind()
    checkpoint.load(pattern)
    checkpoint.register(reader, "reader")
    checkpoint.register(rng, "rng")
    found = rest(reader, rng)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert all(map(np.array_equal, one, other))


@CHECKPOINTS
def test_a_reader_of_other_data_is_refused_by_a_checkpoint(
    kind: Kind, root: str, tmp_path: Path
) -> None:
    checkpoint, reader = kind(), build(root)
    checkpoint.register(reader, "reader")
    after(reader, 1)
    checkpoint.collect()
    checkpoint.save(str(tmp_path / "run_{seq}.json"))
    fresh = kind()
    fresh.load(str(tmp_path / "run_{seq}.json"))
    with pytest.raises((StateMismatch, CheckpointError), match="initial_fill"):
        fresh.register(build(root, initial_fill=9), "reader")


def test_a_reader_without_wrapper_resumes_from_our_checkpoint(root: str, tmp_path: Path) -> None:
    """Its stream is exact. DALI decides the length of its first epoch."""
    checkpoint, reader = Checkpoint(), ndd.readers.File(**arguments(root))
    checkpoint.register(reader, "reader")
    epoch = reader.next_epoch(batch_size=BATCH)
    next(epoch)
    checkpoint.collect()
    checkpoint.save(str(tmp_path / "run_{seq}.json"))
    expected = [content(batch) for batch in epoch]
    checkpoint, reader = Checkpoint(), ndd.readers.File(**arguments(root))
    checkpoint.load(str(tmp_path / "run_{seq}.json"))
    checkpoint.register(reader, "reader")
    found = [content(batch) for batch in reader.next_epoch(batch_size=BATCH)]
    assert found[: len(expected)] == expected


def loader_of(root: str, **how: Any) -> StatefulGPULoader[Any]:
    recipes = [T.RandomResizedCrop(32), T.RandomHorizontalFlip()]
    return StatefulGPULoader(
        FolderSource(root), BATCH, shuffle=True, seed=3, transform=recipes, **how
    )


@pytest.mark.parametrize("how", [{}, {"num_workers": 2}], ids=["inline", "workers"])
def test_our_loader_and_rng_resume_from_dalis_checkpoint(
    how: dict[str, int], root: str, tmp_path: Path
) -> None:
    """E2: through DALI's own file, in the middle of an epoch, pixels included."""
    pattern = str(tmp_path / "run_{seq:04d}.json")
    loader, rng, checkpoint = loader_of(root, **how), RNG(42), ndd.checkpoint.Checkpoint()
    for name, each in {"loader": loader, "rng": rng}.items():
        checkpoint.register(each, name)
    batches = iter(loader)
    next(batches), next(batches), rng.uniform(size=5)
    checkpoint.collect()
    checkpoint.save(pattern)
    expected, draw = [copy_of(batch) for batch in batches], rng.uniform()
    assert len(expected) == 2

    loader, rng, checkpoint = loader_of(root, **how), RNG(0), ndd.checkpoint.Checkpoint()
    checkpoint.load(pattern)
    for name, each in {"loader": loader, "rng": rng}.items():
        checkpoint.register(each, name)
    assert same(list(loader), expected)
    assert rng.uniform() == draw


def test_our_sampler_resumes_from_dalis_checkpoint(root: str) -> None:
    """E2."""
    sampler, checkpoint = ShuffledSampler(range(20), seed=1), ndd.checkpoint.Checkpoint()
    checkpoint.register(sampler, "sampler")
    indices = iter(sampler)
    for _ in range(7):
        next(indices)
    checkpoint.collect()
    text, expected = checkpoint.serialize(), list(indices)
    sampler, checkpoint = ShuffledSampler(range(20), seed=1), ndd.checkpoint.Checkpoint()
    checkpoint.deserialize(text)
    checkpoint.register(sampler, "sampler")
    assert list(sampler) == expected


def test_the_page_runs_and_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(ROOT / "docs/dali.md", tmp_path)


def test_worker_processes_beside_dynamic_mode_do_not_hang(root: str) -> None:
    """C9: they are not forked while DALI is live."""
    list(build(root).next_epoch(BATCH))
    assert dali_is_live()
    loader = loader_of(root, num_workers=1, worker_type="process")
    expected = [copy_of(batch) for batch in loader_of(root)]
    batches = iter(loader)
    with pytest.warns(RuntimeWarning, match="fork server"):
        found = [next(batches)]
    assert {type(child).__name__ for child in multiprocessing.active_children()} == {
        "ForkServerProcess"
    }
    assert same([*found, *batches], expected)
