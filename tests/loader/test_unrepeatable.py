"""An iterable without state is checked by a digest while it is read again."""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import tarfile
import warnings
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from stateful_gpu_loader import StatefulGPULoader, StateMismatch
from stateful_gpu_loader.engine.makers.iterables import digest_with
from tests.conformance import copy_of, loaded, refusal, refusal_at_next, same, through_json
from tests.loader.passes import interrupted
from tests.user_objects import worker_of

pytestmark = pytest.mark.filterwarnings("ignore:.*samples of the iterable dataset are read again")


class Shuffled(IterableDataset[Any]):
    """Shuffles with a private generator, seeded or not."""

    def __init__(self, seed: int | None, length: int = 12, kind: str = "tensor") -> None:
        self.seed, self.length, self.kind = seed, length, kind

    def __iter__(self) -> Iterator[Any]:
        worker, workers = worker_of()
        numbers = list(range(worker, self.length, workers))
        random.Random(self.seed).shuffle(numbers)
        for number in numbers:
            yield {
                "tensor": torch.full((3, 4), number),
                "array": np.full(5, float(number)),
                "bytes": b"\xff\xd8" * 40 + bytes([number]) * 80,
                "pair": (number, {"name": f"{number:04d}", "values": [number] * 40}),
            }[self.kind]


def make(dataset: Any, **arguments: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(dataset, **{"batch_size": 2, "seed": 1, **arguments})


@pytest.mark.processes
@pytest.mark.parametrize(
    ("kind", "num_workers"), [("tensor", 0), ("tensor", 2), ("array", 0), ("bytes", 2), ("pair", 0)]
)
def test_an_iterable_that_gives_other_samples_is_refused(kind: str, num_workers: int) -> None:
    """The error has the remedies; the state is unchanged and can be accepted."""
    interval = 1 if kind == "tensor" else 3
    arguments = {"num_workers": num_workers, "snapshot_every_n_steps": interval}
    loader = make(Shuffled(None, kind=kind), **arguments)
    state, _ = interrupted(loader, 4)
    resumed = make(Shuffled(None, kind=kind), **arguments)
    remedy = refusal_at_next(resumed, state, "iterable").remedy
    assert all(word in remedy for word in ("seed", "state_dict", "TarShards"))
    resumed.load_state_dict(state, accept={"iterable"})
    assert len(list(resumed)) == 2


@pytest.mark.parametrize("kind", ["tensor", "array", "bytes", "pair"])
def test_an_iterable_that_repeats_is_accepted(kind: str) -> None:
    """In a fresh loader and in a used one, and a second time."""
    reference = make(Shuffled(7, kind=kind))
    expected = [[copy_of(batch) for batch in reference] for _ in range(2)]
    for stop in range(7):
        loader = make(Shuffled(7, kind=kind))
        state, _ = interrupted(loader, stop)
        for resumed in (loader, make(Shuffled(7, kind=kind))):
            resumed.load_state_dict(state)
            found = [[copy_of(batch) for batch in resumed] for _ in range(2)]
            assert same(found, [expected[0][stop:], expected[1]]), stop


def test_an_iterable_that_has_become_shorter_is_refused() -> None:
    loader = make(Shuffled(7))
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    resumed = make(Shuffled(7, length=8))
    assert "an end after 8" in refusal_at_next(resumed, loader.state_dict(), "iterable").present


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_distinguished(layout: torch.layout) -> None:
    def nested(value: float) -> torch.Tensor:
        parts = [torch.full((n,), value) for n in (2, 3)]
        return torch.nested.nested_tensor(parts, layout=layout)

    assert digest_with("", [nested(1)]) == digest_with("", [nested(1)])
    assert digest_with("", [nested(1)]) != digest_with("", [nested(2)])


@pytest.mark.parametrize("interval", [1, 5])
def test_a_state_without_digest_is_read_again_as_before(interval: int) -> None:
    """States of earlier versions have none."""
    loader = make(Shuffled(7), snapshot_every_n_steps=interval)
    state, batches = interrupted(loader)
    del state["user"]["workers"][0]["digest"]
    resumed = loaded(make(Shuffled(7), snapshot_every_n_steps=interval), state)
    assert same([copy_of(batch) for batch in resumed], [copy_of(batch) for batch in batches])


def test_a_lost_worker_is_not_replaced_if_the_new_one_reads_other_samples() -> None:
    """Recovery is a resume, and no other check would notice the wrong stream."""
    loader = make(Shuffled(None, length=40), num_workers=1)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    os.kill(batches._workers[0].pid, signal.SIGKILL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(StateMismatch, match="not reproducible"):
            list(batches)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("seed", [None, 3])
def test_the_shuffle_of_webdataset_is_refused_unless_it_has_a_seed(
    tmp_path: Path, seed: int | None
) -> None:
    """Its buffer has a private generator, without a seed by default."""
    import webdataset

    path = tmp_path / "samples.tar"
    with tarfile.open(path, "w") as tar:
        for number in range(60):
            member = tarfile.TarInfo(f"{number:04d}.txt")
            member.size = 2
            tar.addfile(member, BytesIO(b"%02d" % number))

    def build() -> StatefulGPULoader[Any]:
        samples = webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False)
        generator = {} if seed is None else {"rng": random.Random(seed)}
        return make(samples.shuffle(20, **generator).to_tuple("txt"), batch_size=4)

    loader = build()
    state, batches = interrupted(loader, 3)
    resumed = loaded(build(), state)
    if seed is None:
        with pytest.raises(StateMismatch, match="not reproducible"):
            next(iter(resumed))
    else:
        assert same([copy_of(batch) for batch in resumed], [copy_of(batch) for batch in batches])
    del loader, batches, resumed
    gc.collect()  # closes its files here, where the warning is expected


class Flaky(IterableDataset[Any]):
    """Raises storage errors at some samples, and continues when called again.

    Args:
        errors: number of errors by sample; -1 raises always and skips the sample.
        draws: whether samples are noise.
    """

    def __init__(self, errors: dict[int, int], *, draws: bool) -> None:
        self.errors, self.draws = errors, draws

    def __iter__(self) -> Any:
        self.left, self.i = dict(self.errors), 0
        return self

    def __next__(self) -> Any:
        if self.i == 20:
            raise StopIteration
        if self.left.get(self.i):
            self.left[self.i] -= 1
            passes_over = self.errors[self.i] < 0
            self.i += passes_over
            raise TimeoutError(110, "the storage did not answer")
        self.i += 1
        return self.i - 1, float(torch.rand(())) if self.draws else 0.0


def delivered(loader: StatefulGPULoader[Any]) -> Iterator[Any]:
    """Yield all batches, each with the state after it, and None for a failed batch."""
    batches = iter(loader)
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except OSError:
            batch = None
        yield batch, loader.state_dict()


@pytest.mark.parametrize(
    ("times", "first", "draws", "num_workers"),
    [
        *itertools.product([1, 2, -1], [4, 6, 7], [False, True], [0]),
        *(
            pytest.param(times, first, times > 1, 1, marks=pytest.mark.processes)
            for times, first in ((1, 4), (2, 6), (-1, 7))
        ),
    ],
)
def test_a_caught_storage_error_keeps_later_states_valid(
    times: int, first: int, draws: bool, num_workers: int
) -> None:
    """A14: at the resume the storage has recovered, or fails at the same samples again."""

    def make(errors: dict[int, int]) -> StatefulGPULoader[Any]:
        dataset = Flaky(errors, draws=draws)
        return StatefulGPULoader(dataset, batch_size=4, seed=5, num_workers=num_workers)

    errors = {first: times, 13: times}
    run = list(delivered(make(errors)))
    failures = [number for number, (batch, _) in enumerate(run) if batch is None]
    assert len(failures) == 2 * abs(times)
    for number in range(failures[-1], len(run)):
        resumed = loaded(make({} if times > 0 else errors), through_json(run[number][1]))
        rest = [batch for batch, _ in delivered(resumed)]
        assert same(rest, [batch for batch, _ in run[number + 1 :]]), number


def test_a_sample_that_a_caught_error_has_lost_is_refused_if_it_comes_again() -> None:
    """A14: the iterator skipped the sample, but yields it when it is read again."""
    loader = StatefulGPULoader(Flaky({6: -1}, draws=False), batch_size=4, seed=5)
    *_, (_, state), _ = delivered(loader)
    resumed = StatefulGPULoader(Flaky({}, draws=False), batch_size=4, seed=5)
    refusal_at_next(resumed, state, "iterable")


def test_damaged_counts_of_failed_fetches_are_refused() -> None:
    """G6: every field of a state is checked."""
    loader = StatefulGPULoader(Flaky({6: 1}, draws=False), batch_size=4, seed=5)
    *_, (_, state), _ = delivered(loader)
    for failed in ([[1]], [[1, -1]], [[1, True]], [["1", 2]], [3], 7):
        state["user"]["workers"][0]["failed"] = failed
        assert "failed" in refusal(loader, state).field
