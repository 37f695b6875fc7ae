"""``epoch``, ``batches_done`` and ``batches_left``: the counters of a training script.

They are compared with the counts of an uninterrupted run.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from stateful_gpu_loader import CallableSource, SampleInfo, StatefulGPULoader, merge_state_dicts
from tests.conformance import loaded, through_json
from tests.damaged import make as make_bad
from tests.datasets.shards import DamagedShards
from tests.loader.passes import interrupted
from tests.map_datasets import Indices
from tests.stream_kinds import COUNTED, KINDS, LOADERS
from tests.torchdata_runs import torchdata_run
from tests.user_objects import PlainIterable, StatefulBatchSampler, StatefulSampler

Loader = StatefulGPULoader[Any]
Where = tuple[int, int | None, int | None]
EPOCHS = 2
pytestmark = pytest.mark.filterwarnings("ignore:.*samples of the iterable dataset are read again")


def where(loader: Loader) -> Where:
    return loader.epoch, loader.batches_done, loader.batches_left


def counted(loader: Loader) -> list[int]:
    """Return the number of batches of each epoch of an uninterrupted run."""
    return [sum(1 for _ in loader) for _ in range(EPOCHS)]


def assert_knows_its_place(make: Callable[[], Loader], *, is_counted: bool) -> None:
    """Check the counters before, in and after each epoch, and in fresh loaders of its states."""
    loader, numbers = make(), counted(make())
    found: list[tuple[Where, dict[str, Any]]] = [(where(loader), loader.state_dict())]
    wanted: list[Where] = []
    for epoch, number in enumerate(numbers):
        for done in range(number + 1):
            wanted.append((epoch, done, number - done if is_counted else None))
        for i, _ in enumerate(loader, loader.batches_done or 0):
            assert i + 1 == loader.batches_done
            found.append((where(loader), loader.state_dict()))
        found.append((where(loader), loader.state_dict()))
    assert [place[:2] for place in [*wanted, (EPOCHS, 0)]] == [place[:2] for place, _ in found]
    assert [place for place, _ in found][:-1] == wanted
    for place, state in found:
        resumed = loaded(make(), copy.deepcopy(state))
        assert where(resumed) == place
        if is_counted and place[0] < EPOCHS and place[1] % 3 == 0:
            assert sum(1 for _ in resumed) == place[2]
            assert where(resumed)[:2] == (place[0] + 1, 0)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_reports_the_progress_of_an_uninterrupted_run(name: str) -> None:
    """Exact for each kind of dataset, sampler and shards, or None if unknown."""
    assert_knows_its_place(KINDS[name], is_counted=name in COUNTED)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("order", {"in_order": False}),
        ("a sampler with state, on the sampler", {"in_order": False}),
        ("a list of batches", {"in_order": False}),
        ("dataset with state", {"snapshot_every_n_steps": 3}),
        ("a sampler with state, on the sampler", {"snapshot_every_n_steps": 3}),
        ("a batch sampler with state", {"snapshot_every_n_steps": 3}),
        ("plain iterable", {"in_order": False}),
        ("iterable with state", {"snapshot_every_n_steps": 3}),
        ("shards", {}),
        ("calls without length", {}),
    ],
    ids=str,
)
def test_workers_make_no_difference(name: str, arguments: dict[str, Any]) -> None:
    """Neither with batches ahead of a missing one, nor between two snapshots."""
    make = partial(KINDS[name], num_workers=2, **arguments)
    assert_knows_its_place(make, is_counted=name in COUNTED)


def test_batches_ahead_of_a_missing_one_are_done() -> None:
    """In a state with in_order=False."""
    loader = COUNTED["order"]()
    next(iter(loader))
    state = loader.state_dict() | {"ahead": "[8, 16]"}
    resumed = loaded(COUNTED["order"](num_workers=2, in_order=False), state)
    assert where(resumed) == (0, 3, 3)


@pytest.mark.parametrize("name", ["order", "a sampler of random, shared generator", "drop_last"])
@pytest.mark.parametrize(("before", "after"), [(4, 3), (5, 23), (7, 1)])
def test_with_another_batch_size_the_two_make_up_a_whole_epoch(
    name: str, before: int, after: int
) -> None:
    """The rest is counted, and the last batch has the number len(loader) - 1."""
    loader = COUNTED[name](batch_size=before)
    for _ in loader:
        state = loader.state_dict()
        resumed = loaded(COUNTED[name](batch_size=after), through_json(state))
        done, left = resumed.batches_done, resumed.batches_left
        assert done is not None
        assert left is not None
        assert done >= 0
        assert done + left == len(resumed)
        assert [i for i, _ in enumerate(resumed, done)] == list(range(done, len(resumed)))


def test_another_number_of_ranks_at_one_global_batch_size() -> None:
    """The counters are the same on each rank."""
    loader = COUNTED["one of two ranks"]()
    state, _ = interrupted(loader)
    alone = loaded(COUNTED["order"](batch_size=8), state)
    assert where(alone) == where(loader) == (0, 1, 2)


def test_shards_on_another_number_of_ranks() -> None:
    """The rest of the largest rank is counted."""
    ranks = [COUNTED["shards, one of two ranks"](rank=rank) for rank in (0, 1)]
    batches = [iter(loader) for loader in ranks]
    for each in batches:
        next(each)
    merged = merge_state_dicts([loader.state_dict() for loader in ranks])
    alone = loaded(COUNTED["shards, one of two ranks"](num_replicas=1, rank=0), merged)
    done, left = alone.batches_done, alone.batches_left
    assert done is not None
    assert left == sum(1 for _ in enumerate(alone, done))
    assert done + left == len(alone)


@pytest.mark.parametrize("boundary", ["empty", "next_epoch"])
@pytest.mark.parametrize(
    "name", ["order", "dataset with state", "shards", "calls", "epochs of several lengths"]
)
def test_between_the_last_batch_and_the_end(name: str, boundary: str) -> None:
    """The pass is still in progress, and done; a resume starts what comes next."""
    make = partial(COUNTED[name], on_epoch_boundary=boundary)
    loader, first, second = make(), *counted(make())[:2]
    batches = iter(loader)
    for _ in range(first):
        next(batches)
    assert where(loader) == (0, first, 0)
    state = loader.state_dict()
    assert next(batches, None) is None
    assert where(loader) == (1, 0, second)
    resumed = loaded(make(), state)
    place = where(resumed)
    assert place == ((0, first, 0) if boundary == "empty" else (1, 0, second))
    assert sum(1 for _ in resumed) == place[2]
    assert where(resumed)[:2] == (place[0] + 1, 0)


@pytest.mark.filterwarnings("ignore:.*after load_state_dict")
@pytest.mark.parametrize("name", ["order", "dataset with state", "a sampler without state"])
def test_an_epoch_requested_at_the_end_of_another(name: str) -> None:
    """After a load, set_epoch() changes the counters as it changes the pass."""
    loader = COUNTED[name]()
    state = {}
    for _ in loader:
        state = loader.state_dict()
    resumed = loaded(COUNTED[name](), state)
    resumed.set_epoch(1)
    epoch, _, left = where(resumed)
    assert left == sum(1 for _ in resumed)
    assert resumed.epoch == epoch + 1


def test_an_abandoned_pass_is_not_in_progress() -> None:
    """The next pass begins at 0, and so do its counters; the state stays at the break."""
    loader = COUNTED["order"]()
    for epoch in range(3):
        assert where(loader) == (epoch, 0, 6)
        for i, _ in enumerate(loader, loader.batches_done or 0):
            if i == 2:
                assert where(loader) == (epoch, 3, 3)
                break
        assert loader.state_dict()["position"] == 12
    held = iter(loader)
    next(held)
    assert where(loader) == (3, 1, 5)
    next(held)
    assert where(loader) == (3, 2, 4)


def test_an_epoch_requested_between_two_passes() -> None:
    """With the loader's set_epoch() or its own sampler's."""
    loader = COUNTED["order"]()
    loader.set_epoch(7)
    assert where(loader) == (7, 0, 6)
    loader.sampler.set_epoch(9)
    assert where(loader) == (9, 0, 6)
    batches = iter(loader)
    next(batches)
    assert where(loader) == (9, 1, 5)


@pytest.mark.parametrize("name", KINDS)
def test_progress_changes_nothing(name: str) -> None:
    """Nothing starts or is drawn, and no user object is iterated."""
    asked, other = KINDS[name](seed=None), KINDS[name](seed=None)
    torch.manual_seed(3)
    asked.state_dict()
    before = repr(getattr(asked.sampler, "__dict__", None))
    drawn = torch.get_rng_state(), random.getstate()
    for _ in range(2):
        where(asked)
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert random.getstate() == drawn[1]
    assert repr(asked.state_dict()) == repr(other.state_dict())
    assert repr(getattr(asked.sampler, "__dict__", None)) == before
    assert asked._IterableDataset_len_called is None


def test_bad_samples_that_are_dropped() -> None:
    """A batch that is dropped whole is done; samples missing from shards are not left."""

    def call(info: SampleInfo) -> int:
        if 4 <= info.idx_in_epoch < 8:
            raise ValueError("bad")
        return info.idx_in_epoch

    loader = make_bad(CallableSource(call, length=22), shuffle=None)
    places = [where(loader) for _ in loader]
    assert places == [(0, 1, 5), (0, 3, 3), (0, 4, 2), (0, 5, 1), (0, 6, 0)]
    shards = make_bad(DamagedShards({0: (1, "value"), 2: (0, "value")}, counted=True))
    whole = len(shards)
    places = [where(shards) for _ in shards]
    assert [place[1] for place in places] == list(range(1, len(places) + 1))
    assert len(places) < whole
    assert places[-1] == (0, len(places), 0)


@pytest.mark.parametrize("name", ["broken iterator", "broken iterable"])
def test_an_iterable_that_drops_bad_samples_counts_batches(name: str) -> None:
    assert_knows_its_place(LOADERS[name], is_counted=False)


@pytest.mark.parametrize(
    "sampling",
    [
        lambda: {"batch_size": 4, "shuffle": True},
        lambda: {"batch_size": 4, "drop_last": True},
        lambda: {"batch_size": 4, "sampler": StatefulSampler(22)},
        lambda: {"batch_size": 4, "sampler": DistributedSampler(Indices(22), 2, 1)},
        lambda: {"batch_sampler": StatefulBatchSampler(22)},
    ],
)
def test_a_state_of_torchdata(sampling: Callable[[], dict[str, Any]]) -> None:
    """The epoch that it finishes is epoch 0."""
    states, batches = torchdata_run(StatefulDataLoader(Indices(22), **sampling()))
    for delivered, state in enumerate(states[:-1]):
        resumed: Loader = StatefulGPULoader(Indices(22), **sampling())
        resumed.load_state_dict(state)
        assert (resumed.epoch, resumed.batches_done) == (0, delivered)
        numbers = [resumed.batches_done for _ in resumed]
        assert numbers == list(range(delivered + 1, len(batches) + 1))
    ended: Loader = StatefulGPULoader(Indices(22), **sampling())
    ended.load_state_dict(states[-1])
    assert (ended.epoch, ended.batches_done) == (1, 0)


def test_a_state_of_torchdata_of_an_iterable() -> None:
    """It counts batches."""
    theirs = StatefulDataLoader(PlainIterable([9, 9]), batch_size=4)
    batches = iter(theirs)
    next(batches)
    next(batches)
    resumed: Loader = StatefulGPULoader(PlainIterable([9, 9]), batch_size=4)
    resumed.load_state_dict(theirs.state_dict())
    assert where(resumed) == (0, 2, None)


def test_a_state_without_the_batch_samplers_count_gives_unknown_progress() -> None:
    """Old states lack this count."""
    loader = KINDS["a list of batches"]()
    state, batches = interrupted(loader)
    assert state["user"]["batches"] == 1
    old = state | {"user": None}
    resumed = loaded(KINDS["a list of batches"](), old)
    assert where(resumed) == (0, None, None)
    with pytest.raises(TypeError):
        enumerate(resumed, resumed.batches_done)  # type: ignore[arg-type]
    assert len(list(resumed)) == len(list(batches)) == 2
    assert resumed.batches_done == 0


def test_a_sampler_that_yields_more_than_its_length_is_counted() -> None:
    """Its length is wrong, so the rest is unknown."""

    class TooShort(RandomSampler):
        def __len__(self) -> int:
            return 9

    loader: Loader = StatefulGPULoader(Indices(20), batch_size=4, sampler=TooShort(range(20)))
    places = [where(loader) for _ in loader]
    assert places == [(0, 1, 2), (0, 2, 1), (0, 3, None), (0, 4, None), (0, 5, None)]
