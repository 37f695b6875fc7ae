"""DALI's own checkpoints, as bytes and as files, resume in a DALILoader."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stateful_gpu_loader import start_workers
from stateful_gpu_loader.errors import LoaderError, StateMismatch
from stateful_gpu_loader.integrations.dali import DALILoader
from stateful_gpu_loader.samplers import LastBatchPolicy
from tests.conformance import copy_of, differing, same
from tests.integrations.dali_readers import (
    READERS,
    Arguments,
    augmented,
    loader,
    numbers,
)
from tests.integrations.test_dali_pipeline_sources import make as make_source
from tests.integrations.test_dali_pipeline_sources import of_batch

dali = pytest.importorskip("nvidia.dali")

READING: Arguments = {"random_shuffle": True, "initial_fill": 4}
MADE: Arguments = {"batch_size": 3, "seed": 5}


def of_dali_alone(reader: str, arguments: Arguments, runs: int, **made: Any) -> Any:
    """Return a pipeline after some runs by DALI alone."""
    pipeline = augmented()(reader, arguments, enable_checkpointing=True, **(MADE | made))
    pipeline.build()
    for _ in range(runs):
        pipeline.run()
    return pipeline


def _tensors(outputs: Any) -> dict[str, torch.Tensor]:
    found = (torch.from_numpy(np.array(output.as_tensor())) for output in outputs)
    return dict(zip(("images", "labels"), found, strict=True))


def endless(loaded: DALILoader) -> Iterator[Any]:
    while True:
        for batch in loaded:
            yield copy_of(batch)


@pytest.mark.dali
@pytest.mark.parametrize("reader", READERS)
def test_the_loader_resumes_where_dali_stopped(
    reader: str, tmp_path: Path, datasets: dict[str, Arguments]
) -> None:
    """DALI's own next batches, from its bytes and from its file, at any batch.

    Under FILL without padding, every batch of a pipeline is one of the loader's.
    """
    arguments, file = {**datasets[reader], **READING}, tmp_path / "pipeline.cpt"
    for runs in (0, 2, 4, 9):
        pipeline = of_dali_alone(reader, arguments, runs)
        checkpoint = pipeline.checkpoint(str(file))
        expected = [_tensors(pipeline.run()) for _ in range(5)]
        for given in (checkpoint, file, str(file)) if runs == 2 else (checkpoint,):
            loaded = loader(augmented(), reader, arguments)
            loaded.load_checkpoint(given)
            batches = endless(loaded)
            assert same([next(batches) for _ in range(5)], expected), runs


@pytest.mark.dali
@pytest.mark.parametrize("policy", LastBatchPolicy, ids=lambda policy: policy.name)
@pytest.mark.parametrize("sticks", [False, True])
def test_it_is_in_the_epoch_that_the_checkpoint_is_of(
    policy: LastBatchPolicy, sticks: bool, datasets: dict[str, Arguments]
) -> None:
    """Compared with a loader that made the same batches. A resumed epoch has its remainder."""
    shards = {"num_shards": 3, "shard_id": 1, "stick_to_shard": sticks}
    shards["pad_last_batch"] = sticks == (policy is not LastBatchPolicy.PARTIAL)
    arguments = {**datasets["file"], **READING, **shards}
    make = partial(loader, augmented(), "file", arguments, options={"last_batch_policy": policy})
    whole = make()
    epochs = [[(copy_of(batch), whole.state_dict()) for batch in whole] for _ in range(4)]
    for number, epoch in enumerate(epochs[:3]):
        for place in {1, len(epoch)}:
            runs = whole._stream.cuts.runs_before(number) + place  # type: ignore[union-attr]
            pipeline = of_dali_alone("file", arguments, runs)
            loaded = make()
            loaded.load_checkpoint(pipeline.checkpoint())
            rest = epoch[place:] or epochs[number + 1]
            found = [(copy_of(batch), loaded.state_dict()) for batch in loaded]
            assert same(found, rest), (number, place)


@pytest.mark.parametrize("runs", [0, 2, 5])
def test_a_source_resumes_in_its_epoch(runs: int) -> None:
    """Epochs of four batches."""
    whole = make_source(of_batch, batch_info=True)
    expected = [[copy_of(batch) for batch in whole] for _ in range(2)]
    pipeline = whole._pipeline(enable_checkpointing=True)
    pipeline.build()
    given = 0
    while given < runs:
        try:
            pipeline.run()
            given += 1
        except StopIteration:
            pipeline.reset()
    loaded = make_source(of_batch, batch_info=True)
    loaded.load_checkpoint(pipeline.checkpoint())
    epoch, place = divmod(runs, 4)
    assert same([copy_of(batch) for batch in loaded], expected[epoch][place:])


CHANGES: dict[str, tuple[Arguments, Arguments, str]] = {
    "an operator less": ({}, {"noise": True}, "operator __Gaussian_4"),
    "an operator more": ({"noise": True}, {}, "operator __Gaussian_4"),
    "reader's name": ({}, {"reading": {"name": "files"}}, "operator reader"),
    "batch size": ({}, {"batch_size": 4}, "reader's place"),
    "shards": ({}, {"reading": {"num_shards": 2}}, "reader's place"),
    "padding": ({}, {"reading": {"pad_last_batch": True}}, "reader's place"),
    "samples": ({}, {"reading": {"files": 9}}, "reader's place"),
}


@pytest.mark.dali
@pytest.mark.parametrize("change", CHANGES)
def test_another_pipeline_is_refused(change: str, datasets: dict[str, Arguments]) -> None:
    """Only where it can be known: DALI silently resumes in the last four."""
    made, present, field = CHANGES[change]
    arguments = {**datasets["file"], **READING}
    pipeline = of_dali_alone("file", arguments, 5, **made)
    present = dict(present)
    reading = present.pop("reading", {})
    if "files" in reading:
        reading = {name: arguments[name][: reading["files"]] for name in ("files", "labels")}
    loaded = loader(augmented(), "file", {**arguments, **reading}, **present)
    batches = iter(loaded)
    next(batches)
    before = loaded.state_dict()
    with pytest.raises(StateMismatch, check=differing(field)):
        loaded.load_checkpoint(pipeline.checkpoint())
    assert loaded.state_dict() == before
    next(batches)


def test_values_that_are_not_checkpoints_are_refused(
    tmp_path: Path, datasets: dict[str, Arguments]
) -> None:
    """An altered checkpoint neither hangs nor resumes elsewhere."""
    loaded = loader(numbers(), "numpy", datasets["numpy"])
    pipeline = of_dali_alone("numpy", datasets["numpy"], 3)
    for damaged in (b"", b"{}", json.dumps(loaded.state_dict()).encode(), b"\x0a\x00"):
        with pytest.raises(StateMismatch, check=differing("checkpoint")):
            loaded.load_checkpoint(damaged)
    with pytest.raises(FileNotFoundError):
        loaded.load_checkpoint(tmp_path / "none.cpt")
    built = DALILoader(pipeline, ["images", "labels"])
    with pytest.raises(LoaderError, match="Pipeline"):
        built.load_checkpoint(pipeline.checkpoint())


def test_an_altered_reader_is_refused(datasets: dict[str, Arguments]) -> None:
    """DALI has no checksum, and never returns from some of these states."""
    arguments = {**datasets["numpy"], **READING}
    pipeline = of_dali_alone("numpy", arguments, 3)
    checkpoint = pipeline.checkpoint()
    loaded = loader(augmented(), "numpy", arguments)
    begin = checkpoint.index(b"reader") + len(b"reader")
    end = checkpoint.index(b"\n", begin + 6) - 1
    another_field, another_epoch, more_samples = (begin + 4, 16), (end - 3, 4), (end - 1, 16)
    everywhere = [(at, 128) for at in range(begin, end)]
    for at, bits in (another_field, another_epoch, more_samples, *everywhere):
        altered = bytearray(checkpoint)
        altered[at] ^= bits
        with pytest.raises(StateMismatch) as refused:
            loaded.load_checkpoint(bytes(altered))
        assert refused.value.field in ("checkpoint", "reader's place")


def of_place(info: Any) -> Any:
    if info.idx_in_epoch >= 11 - 11 % 3:
        raise StopIteration
    return np.array([info.idx_in_epoch + 100 * info.epoch_idx])


def make_parallel(of_sample: Any = of_place, **pipeline: Any) -> DALILoader:
    options = {"py_num_workers": 1, "py_start_method": "fork", **pipeline}
    made = make_source(of_sample, parallel=True, batch=False, pipeline=options)
    assert isinstance(made, DALILoader)
    return made


def pool_of(loaded: DALILoader) -> Any:
    return loaded._started._py_pool


@pytest.mark.processes
@pytest.mark.parametrize("state_of", ["nothing", "a batch", "DALI"])
def test_workers_that_wait_serve_the_pipeline_that_is_built(state_of: str) -> None:
    """They are forked before the GPU is used, and a state is loaded afterwards."""
    waiting = make_parallel()
    start_workers(waiting)  # before DALI has threads, which must not be forked
    whole = make_parallel()
    expected = [[copy_of(batch) for batch in whole] for _ in range(2)]
    saved = make_parallel()
    next(iter(saved))
    pool = pool_of(waiting)
    pids = pool.pids()
    waiting.start_py_workers()
    assert pool_of(waiting) is pool, "they are started once"
    if state_of == "a batch":
        waiting.load_state_dict(saved.state_dict())
    elif state_of == "DALI":
        waiting.load_checkpoint(saved._stream._pipeline.checkpoint())  # type: ignore[union-attr]
    found = [[copy_of(batch) for batch in waiting] for _ in range(2)]
    first = expected[0] if state_of == "nothing" else expected[0][1:]
    assert same(found, [first, expected[1]])
    assert waiting._stream._pipeline._py_pool.pids() == pids  # type: ignore[union-attr]
    waiting.start_py_workers()


@pytest.mark.processes
def test_a_refused_state_leaves_the_workers_waiting() -> None:
    other = make_parallel(batch_size=4)
    next(iter(other))
    waiting = make_parallel()
    waiting.start_py_workers()
    pool = pool_of(waiting)
    with pytest.raises(StateMismatch, check=differing("batch_size")):
        waiting.load_state_dict(other.state_dict())
    assert pool_of(waiting) is pool
    assert next(iter(waiting))["numbers"].flatten().tolist() == [0, 1, 2]


def test_no_worker_is_forked_after_cuda_is_initialized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only workers that would be forked."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(LoaderError, match="CUDA"):
        start_workers(make_parallel())
    start_workers(make_source(of_batch, batch_info=True))


@pytest.mark.processes
def test_pipelines_of_dali_start_their_workers_too() -> None:
    """Before any of them is built, as DALI requires for several."""
    pipeline = make_parallel()._pipeline(enable_checkpointing=True)
    start_workers(pipeline)
    (pid,) = pipeline._py_pool.pids()
    pipeline.build()
    assert pipeline._py_pool.pids() == [pid]
    built = DALILoader(pipeline, ["numbers", "noise"])
    built.start_py_workers()
    assert len(list(built)) == 3


class Inherited:
    """Records the processes in which it was deleted."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.itself = folder, self

    def __del__(self) -> None:
        (self.folder / str(os.getpid())).touch()


@pytest.mark.processes
@pytest.mark.parametrize("how", ["iter", "start_workers"])
def test_workers_do_not_take_apart_the_garbage_that_they_inherit(how: str, tmp_path: Path) -> None:
    """A pipeline in it ended them with a segmentation fault."""

    def of_place_with_collection(info: Any) -> Any:
        if info.idx_in_epoch == 0:
            gc.collect()
        return of_place(info)

    gc.disable()
    try:
        Inherited(tmp_path)
        loaded = make_parallel(of_place_with_collection)
        if how == "start_workers":
            start_workers(loaded)
        assert len(list(loaded)) == 3
        gc.collect()
    finally:
        gc.enable()
    assert [file.name for file in tmp_path.iterdir()] == [str(os.getpid())]
