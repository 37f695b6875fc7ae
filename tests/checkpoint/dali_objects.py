"""DALI's own dynamic readers and RNGs in a Checkpoint: a script, because DALI starts threads.

Run with a folder of files for the readers; exits with a traceback on a failure.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import nvidia.dali.experimental.dynamic as ndd
from nvidia.dali import fn, pipeline_def

from stateful_gpu_loader.checkpoint import Checkpoint
from stateful_gpu_loader.errors import CheckpointError
from stateful_gpu_loader.integrations.dali import DALILoader

ROOT = Path(sys.argv[1]) if __name__ == "__main__" else Path()
PATTERN = ROOT.parent / "dali_{seq}.json"


def reader(**arguments: Any) -> Any:
    return ndd.readers.File(file_root=str(ROOT), random_shuffle=True, seed=7, **arguments)


def labels(batches: Any, count: int) -> list[list[int]]:
    return [np.asarray(ndd.as_tensor(next(batches)[1])).ravel().tolist() for _ in range(count)]


def angles(rng: Any) -> list[float]:
    drawn = ndd.random.uniform(range=(-30, 30), shape=[4], rng=rng, device="cpu")
    return np.asarray(drawn).tolist()


def error_of(act: Any) -> str:
    try:
        act()
    except CheckpointError as error:
        return str(error)
    raise AssertionError("it was accepted")


def states_go_on() -> None:
    files, rng, checkpoint = reader(), ndd.random.RNG(seed=42), Checkpoint()
    checkpoint.register(files, "reader")
    checkpoint.register(rng)
    assert "'reader' (nvidia.dali" in error_of(checkpoint.collect), "DALI has no state yet"
    batches = iter(files.next_epoch(batch_size=2))
    labels(batches, 2), angles(rng)
    checkpoint.collect()
    assert isinstance(checkpoint.get_state("reader"), str)
    checkpoint.save(PATTERN)
    expected = labels(batches, 3), angles(rng)

    resumed, fresh, other_rng = Checkpoint(), reader(), ndd.random.RNG(seed=1)
    resumed.load(PATTERN)
    resumed.register(fresh, "reader")
    resumed.register(other_rng)
    assert (labels(iter(fresh.next_epoch(batch_size=2)), 3), angles(other_rng)) == expected

    late = Checkpoint()
    late.load(PATTERN)
    text = error_of(lambda: late.register(fresh, "reader"))
    assert "'reader'" in text
    assert "was already iterated" in text
    assert "Remedy: build it again" in text
    assert late.names == ()


def started_reader_without_its_state_is_refused() -> None:
    started = reader()
    labels(iter(started.next_epoch(batch_size=2)), 1)
    checkpoint = Checkpoint()
    text = error_of(lambda: checkpoint.register(started, "reader"))
    assert "before its first iteration" in text
    assert checkpoint.names == ()
    enabled = reader(enable_checkpointing=True)
    labels(iter(enabled.next_epoch(batch_size=2)), 1)
    checkpoint.register(enabled, "reader")
    checkpoint.collect()
    assert "was already iterated" in error_of(checkpoint.restore), "before anything is changed"


def other_type_is_refused() -> None:
    checkpoint = Checkpoint()
    checkpoint.load(PATTERN)
    text = error_of(lambda: checkpoint.register(ndd.random.RNG(seed=1), "reader"))
    assert "nvidia.dali.experimental.dynamic.readers.File" in text
    assert "nvidia.dali.experimental.dynamic.random.RNG" in text


def refused_state_leaves_a_reader_at_its_beginning() -> None:
    one, two, checkpoint = reader(), reader(), Checkpoint()
    checkpoint.register(one, "one")
    checkpoint.register(two, "two")
    held = Checkpoint()
    held.load(PATTERN)
    checkpoint.set_state("one", held.get_state("reader"))
    checkpoint.set_state("two", 7)
    text = error_of(checkpoint.restore)
    assert "['one'] had already been restored" in text
    assert "back in ['one', 'two']" in text
    assert labels(iter(one.next_epoch(batch_size=2)), 3) == labels(
        iter(reader().next_epoch(batch_size=2)), 3
    )


def refused_state_leaves_loaders_as_they_are() -> None:
    @pipeline_def(batch_size=2, num_threads=1, device_id=None, enable_checkpointing=True)
    def files() -> Any:
        data, label = fn.readers.file(file_root=str(ROOT), name="files")
        return data, label

    built = files()
    built.build()
    for thing in (DALILoader(files, ["file", "label"]), DALILoader(built, ["file", "label"])):
        batches = iter(thing)
        next(batches)
        checkpoint = Checkpoint()
        checkpoint.set_state("loader", {**thing.state_dict(), "version": 99})
        text = error_of(
            lambda checkpoint=checkpoint, thing=thing: checkpoint.register(thing, "loader")
        )
        assert "It is unchanged" in text, text
        assert "build these again" not in text
        before = thing.state_dict()
        next(batches)
        assert thing.state_dict() != before, "its iterator moves its state"


if __name__ == "__main__":
    states_go_on()
    started_reader_without_its_state_is_refused()
    other_type_is_refused()
    refused_state_leaves_a_reader_at_its_beginning()
    refused_state_leaves_loaders_as_they_are()
    print("all hold")
