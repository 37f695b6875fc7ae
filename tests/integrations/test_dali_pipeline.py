"""A DALI pipeline as a loader: after any batch, the rest equals the uninterrupted run."""

from __future__ import annotations

import io
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader.checkpoint import Checkpoint
from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.integrations.dali import DALILoader
from tests.conformance import assert_exact_resume, copy_of, same, through_json
from tests.integrations.dali_readers import (
    READERS,
    Arguments,
    N,
    augmented,
    loader,
    numbers,
    write_datasets,
)

pytest.importorskip("nvidia.dali")

SHUFFLED = {"random_shuffle": True, "initial_fill": 4}


@pytest.mark.dali
@pytest.mark.parametrize("reader", READERS)
def test_every_reader_resumes_after_every_batch(
    datasets: dict[str, Arguments], reader: str
) -> None:
    """Three epochs of shuffled and augmented images, pixels included."""
    make = partial(loader, augmented(), reader, {**datasets[reader], **SHUFFLED})
    assert_exact_resume(make, epochs=3)


def test_the_images_of_these_tests_are_augmented_and_shuffled(
    datasets: dict[str, Arguments],
) -> None:
    """Otherwise an exact rest would prove nothing."""
    loaded = loader(augmented(), "file", {**datasets["file"], **SHUFFLED})
    epochs = [list(loaded) for _ in range(3)]
    orders = [torch.cat([batch["images"] for batch in epoch]) for epoch in epochs]
    labels = [
        torch.cat([batch["labels"].flatten() for batch in epoch]).tolist() for epoch in epochs
    ]
    assert len({tuple(each) for each in labels}) == 3
    assert set(labels[0]) == set(range(N))
    assert orders[0].shape == (12, 3, 12, 12)
    assert orders[0].dtype == torch.float32
    assert not torch.equal(orders[0][0], orders[0][-1])


@pytest.mark.parametrize("shuffle_after_epoch", [False, True])
def test_a_pipeline_that_draws_its_seed_resumes(
    datasets: dict[str, Arguments], shuffle_after_epoch: bool
) -> None:
    """The state holds the generators' states, whatever their seeds."""
    arguments = (
        {**datasets["file"], "shuffle_after_epoch": True}
        if shuffle_after_epoch
        else (datasets["file"] | SHUFFLED)
    )
    make = partial(loader, augmented(), "file", arguments, seed=None)
    run = make()
    batches, states = [], []
    for _ in range(2):
        for batch in run:
            batches.append(copy_of(batch))
            states.append(run.state_dict())
    for delivered, state in enumerate(states, 1):
        resumed = make()
        resumed.load_state_dict(state)
        rest = list(resumed) if delivered > 4 else [*resumed, *resumed]
        assert same(rest, batches[delivered:])


@pytest.mark.dali
@pytest.mark.parametrize(
    ("executor", "prefetch_queue_depth"),
    [
        ({"exec_dynamic": True}, 4),
        ({"exec_dynamic": False}, 2),
        ({"exec_dynamic": False, "exec_pipelined": False, "exec_async": False}, 1),
        ({"exec_dynamic": True, "exec_pipelined": False, "exec_async": False}, 1),
    ],
    ids=["dynamic", "pipelined", "simple", "dynamic in turn"],
)
def test_batches_computed_ahead_never_count(
    datasets: dict[str, Arguments], executor: Arguments, prefetch_queue_depth: int
) -> None:
    """With every executor and queue, and from each to another."""
    arguments = {**datasets["caffe"], **SHUFFLED, "prefetch_queue_depth": prefetch_queue_depth}
    made = {**executor, "prefetch_queue_depth": prefetch_queue_depth}
    make = partial(loader, numbers(), "caffe", arguments)
    other = {"exec_dynamic": True, "prefetch_queue_depth": 3, "num_threads": 3}
    assert_exact_resume(partial(make, **made), epochs=3, other=(other,))


def test_batches_keep_their_values(datasets: dict[str, Arguments]) -> None:
    """A delivered batch is the caller's: no later batch overwrites it."""
    for exec_dynamic in (True, False):
        loaded = loader(
            augmented(), "file", datasets["file"], exec_dynamic=exec_dynamic, prefetch_queue_depth=1
        )
        kept, copies = [], []
        for _ in range(3):
            for batch in loaded:
                kept.append(batch)
                copies.append(copy_of(batch))
        assert same(kept, copies)


def test_a_state_survives_files(datasets: dict[str, Arguments]) -> None:
    """JSON, and a file that torch reads without running code; small and flat."""
    loaded = loader(augmented(), "tfrecord", {**datasets["tfrecord"], **SHUFFLED})
    batches = iter(loaded)
    next(batches)
    state = loaded.state_dict()
    file = io.BytesIO()
    torch.save({"loader": state, "step": 1}, file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["loader"] == state == through_json(state)
    assert len(str(state)) < 4000
    assert all(isinstance(value, (str, int)) for value in state.values())
    state.clear()
    assert loaded.state_dict()["position"] == 1


def test_it_registers_in_a_checkpoint(tmp_path: Path, datasets: dict[str, Arguments]) -> None:
    """Beside other objects. A pipeline that differs is refused, and nothing is changed."""
    make = partial(loader, augmented(), "file", datasets["file"])
    loaded, rng = make(), random.Random(3)
    checkpoint = Checkpoint()
    checkpoint.register(loaded, "loader")
    checkpoint.register(rng, "rng")
    batches = iter(loaded)
    next(batches)
    checkpoint.collect()
    checkpoint.save(str(tmp_path / "run_{seq}.json"))
    restored = Checkpoint()
    restored.load(str(tmp_path / "run_{seq}.json"))
    with pytest.raises(ValueError, match="size"):
        restored.register(make(size=13), "loader")
    resumed = make()
    restored.register(resumed, "loader")
    assert same(list(resumed), [copy_of(batch) for batch in batches])


def test_its_state_is_a_text_too(datasets: dict[str, Arguments]) -> None:
    """DALI's own Checkpoint asks objects for text."""
    loaded = loader(numbers(), "file", datasets["file"])
    batches = iter(loaded)
    next(batches)
    text = loaded.get_state(cuda_stream=None)
    resumed = loader(numbers(), "file", datasets["file"])
    resumed.set_state(text)
    assert same(list(resumed), [copy_of(batch) for batch in batches])


def test_a_break_continues_the_epoch(datasets: dict[str, Arguments]) -> None:
    """No sample is silently lost, as with DALI's iterator."""
    expected = [copy_of(batch) for batch in loader(numbers(), "file", datasets["file"])]
    loaded = loader(numbers(), "file", datasets["file"])
    found = []
    for _ in range(2):
        for batch in loaded:
            found.append(batch)
            break
    assert loaded.state_dict()["position"] == 2
    assert same(found + list(loaded), expected)
    assert loaded.state_dict()["epoch"] == 1


def test_a_break_after_the_last_batch_begins_the_next_epoch(datasets: dict[str, Arguments]) -> None:
    """Trainers count to len() and never reach the end. A resumed rest is still empty."""
    run = loader(numbers(), "file", datasets["file"])
    epochs = [[copy_of(batch) for batch in run] for _ in range(2)]
    loaded = loader(numbers(), "file", datasets["file"])
    found = [next(batches) for batches in [iter(loaded)] for _ in range(len(loaded))]
    state = loaded.state_dict()
    assert (state["epoch"], state["position"]) == (0, len(epochs[0]))
    assert same([found, list(loaded)], epochs)
    resumed = loader(numbers(), "file", datasets["file"])
    resumed.load_state_dict(state)
    assert list(resumed) == []
    assert same([next(batches) for batches in [iter(resumed)] for _ in epochs[1]], epochs[1])
    assert same(list(resumed), list(run))


def test_a_running_iterator_finishes_its_own_stream(datasets: dict[str, Arguments]) -> None:
    """A load acts on the next iterator."""
    loaded = loader(numbers(), "file", datasets["file"])
    expected = [copy_of(batch) for batch in loader(numbers(), "file", datasets["file"])]
    batches = iter(loaded)
    next(batches)
    state = loaded.state_dict()
    next(batches)
    loaded.load_state_dict(state)
    assert same(list(batches), expected[2:])
    assert same(list(loaded), expected[1:])


def test_a_failure_loses_no_batch(tmp_path: Path) -> None:
    """DALI would continue without the failed batch. The state is that of the last delivered one."""
    datasets = write_datasets(tmp_path)
    files = datasets["file"]["files"]
    make = partial(loader, augmented(), "file", datasets["file"])
    expected = [copy_of(batch) for batch in make()]
    whole = Path(files[7]).read_bytes()
    Path(files[7]).write_bytes(b"no image")
    loaded, found = make(), []
    with pytest.raises(RuntimeError, match="decoders"):
        found.extend(loaded)
    assert same(found, expected[:2])
    for _ in range(2):
        with pytest.raises(LoaderError, match="RuntimeError"):
            next(iter(loaded))
    state = loaded.state_dict()
    assert state["position"] == 2
    Path(files[7]).write_bytes(whole)
    loaded.load_state_dict(state)
    assert same(list(loaded), expected[2:])


def test_nothing_is_built_before_it_is_needed(datasets: dict[str, Arguments]) -> None:
    """A state starts nothing, and a fresh one is at the beginning."""
    made: list[Any] = []
    plain = loader(numbers(), "file", datasets["file"])
    expected = [copy_of(batch) for batch in plain]

    def factory(**options: Any) -> Any:
        made.append(options)
        return numbers()("file", datasets["file"], batch_size=3, seed=5, **options)

    lazy = DALILoader(factory, ["images", "labels"])
    batches = iter(lazy)
    state = lazy.state_dict()
    lazy.load_state_dict(state)
    assert made == []
    assert lazy.state_dict() == state
    assert same(list(batches), expected)
    lazy.load_state_dict(state)
    assert same(list(lazy), expected)
    assert made == [{"enable_checkpointing": True}] * 2
