"""Bad samples and the loader's order: positions stay, and who may take a place (G4, law 6)."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import pytest
import torch

from stateful_gpu_loader import BadSample
from stateful_gpu_loader.state.bad_samples import BadSamples
from tests.bad_sample_loaders import (
    BAD,
    Loader,
    N,
    assert_same_run,
    assert_states_follow,
    make,
    modes,
)
from tests.conformance import assert_exact_resume
from tests.engine.makers.damaged import Damaged
from tests.map_datasets import Indices
from tests.user_objects import StatefulSampler


def test_positions_and_length_stay_under_drop() -> None:
    loader = make()
    assert len(loader) == math.ceil(N / 4)
    sizes = []
    for number, batch in enumerate(loader, 1):
        sizes.append(len(batch["index"]))
        assert loader.state_dict()["position"] == min(4 * number, N)
    assert sum(sizes) == N - len(BAD)
    assert len(sizes) == len(loader)


def test_batches_stay_whole_under_replace() -> None:
    batches = [batch["index"].tolist() for batch in make(on_bad_sample="replace")]
    assert [*map(len, batches)] == [4, 4, 4, 4, 4, 2]
    assert not BAD.intersection(itertools.chain(*batches))


@pytest.mark.processes
@modes
def test_without_batches_a_bad_sample_is_replaced_in_any_case(mode: str) -> None:
    """A loop does not expect an empty batch."""
    build = partial(make, batch_size=None, on_bad_sample=mode)
    indices = [sample["index"] for sample in build()]
    assert len(indices) == N
    assert not BAD.intersection(indices)
    assert_exact_resume(build, every=6)
    assert_same_run(build, [{"num_workers": 2}])


@pytest.mark.fuzz
@modes
@pytest.mark.parametrize("kind", [list, StatefulSampler])
def test_a_users_sampler_gets_another_sample_of_its_batch(mode: str, kind: type[Any]) -> None:
    """Law 6: none from outside the sampler's order."""

    def build(**other: Any) -> Loader:
        sampler = kind(range(3, 15)) if kind is list else kind(15)
        return make(shuffle=None, sampler=sampler, on_bad_sample=mode, **other)

    wanted = list(build().sampler)
    for number, batch in enumerate(build()):
        asked = wanted[4 * number : 4 * number + 4]
        good = [index for index in asked if index not in BAD]
        indices = batch["index"].tolist()
        assert set(indices) == set(good)
        assert len(indices) == (len(asked) if mode == "replace" else len(good))
    assert_exact_resume(build)
    assert_states_follow(build, [{}])


@modes
def test_batches_that_overtake_each_other(mode: str) -> None:
    """A11: the record names the same, in the order of delivery."""
    build = partial(make, on_bad_sample=mode)
    ordered, free = build(), build(num_workers=2, in_order=False)
    wanted = sorted(tuple(batch["index"].tolist()) for batch in ordered)
    assert sorted(tuple(batch["index"].tolist()) for batch in free) == wanted
    assert free.bad_samples.total == ordered.bad_samples.total
    assert {bad.index for bad in free.bad_samples.samples} == BAD


class Flaky(Indices):
    """The storage fails so many times for one of its samples."""

    def __init__(self, length: int, failures: int) -> None:
        super().__init__(length)
        self.failures = failures

    def __getitem__(self, index: int) -> int:
        if index == 6 and self.failures:
            self.failures -= 1
            raise OSError(5, "Input/output error")
        return index


@modes
def test_a_failure_of_the_system_is_tried_again_and_then_raised(mode: str) -> None:
    build = partial(make, shuffle=False, on_bad_sample=mode)
    patient = build(Flaky(12, 2))
    assert torch.cat(list(patient)).tolist() == list(range(12))
    assert patient.bad_samples.total == 0
    broken = build(Flaky(12, 3))
    batches = iter(broken)
    assert next(batches).tolist() == [0, 1, 2, 3]
    with pytest.raises(OSError, match="Input/output error"):
        next(batches)
    assert broken.bad_samples.total == 0
    assert [batch.tolist() for batch in batches] == [[8, 9, 10, 11]]


@modes
@pytest.mark.parametrize("num_workers", [0, 1])
def test_where_all_are_bad_it_says_how_many_were_tried(mode: str, num_workers: int) -> None:
    dataset = Damaged(N, {index: partial(ValueError, "no label") for index in range(N)})
    loader = make(dataset, on_bad_sample=mode, num_workers=num_workers)
    with pytest.raises(BadSample, match="and 8 other samples of the order, tried in its place"):
        next(iter(loader))
    assert loader.bad_samples.total == 0
    own = make(dataset, shuffle=None, sampler=range(N), on_bad_sample=mode)
    with pytest.raises(BadSample, match="and 3 other samples of the batch"):
        next(iter(own))


def test_the_record_is_a_fresh_one_for_each_loader() -> None:
    used, fresh = make(), make()
    list(used)
    assert fresh.bad_samples == BadSamples()
    used.load_state_dict(fresh.state_dict())
    assert used.bad_samples == BadSamples(), "the state's record, and no sum of both"
