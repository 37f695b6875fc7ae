"""States of torchdata's loader finish their epoch here: its own orders, and samplers.

Refusals and datasets with state are in test_torchdata_states_of_datasets.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from stateful_gpu_loader import StatefulGPULoader
from tests.conformance import loaded, refusal
from tests.map_datasets import Indices
from tests.torchdata_objects import LENGTH, IteratorSampler
from tests.torchdata_runs import Batches, plain, through_torch, torchdata_run
from tests.user_objects import StatefulBatchSampler, StatefulSampler

SEED = 5
EXECUTIONS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "snapshot_every_n_steps": 4},  # a short batch after the last snapshot
]
Make = Callable[..., Any]
executions = pytest.mark.parametrize(
    "execution", EXECUTIONS, ids=lambda execution: "-".join(map(str, execution.values()))
)


def assert_finishes_the_epoch(
    theirs: Make,
    ours: Make,
    execution: dict[str, Any],
    resumed_on: tuple[dict[str, Any], ...] = ({},),
) -> None:
    """Check that from every state of a torchdata pass our loader delivers the rest of that pass.

    The following epoch is ours, and a second resume in the same epoch is as exact as the first.

    Args:
        theirs, ours: make a loader; each call builds dataset and sampler again.
        execution: torchdata's workers.
        resumed_on: our workers. All but the first resume only at one place in the middle.
    """
    interrupted, fresh = theirs(**execution), ours()
    states, batches = torchdata_run(interrupted)
    if fresh.shuffle is None:
        whole = [plain(batch) for batch in interrupted]  # the user's sampler continues by itself
    else:
        fresh.set_epoch(1)
        whole = [plain(batch) for batch in fresh]
    for delivered, state in enumerate(states[:-1]):
        for change in resumed_on if delivered == 2 else resumed_on[:1]:
            loader = loaded(ours(**change), through_torch(state))
            assert [plain(batch) for batch in loader] == batches[delivered:], (delivered, change)
            assert loader.state_dict()["epoch"] == 1
            assert [plain(batch) for batch in loader] == whole, "the epoch after it is ours"
            _assert_second_resume(ours, change, state, batches[delivered:])
    finished = loaded(ours(), states[-1])
    address = finished.state_dict()
    assert (address["epoch"], address["position"]) == (1, 0)
    assert [plain(batch) for batch in finished] == whole


def _assert_second_resume(
    ours: Make, change: dict[str, Any], state: dict[str, Any], rest: Batches
) -> None:
    for taken in range(min(3, len(rest) + 1)):
        loader = loaded(ours(**change), copy.deepcopy(state))
        batches = iter(loader)
        assert [plain(next(batches)) for _ in range(taken)] == rest[:taken]
        again = loaded(ours(**change), through_torch(loader.state_dict()))
        assert [plain(batch) for batch in again] == rest[taken:], taken


# Orders that torchdata draws itself.


@pytest.mark.processes
@pytest.mark.parametrize(
    ("order", "batch_size", "drop_last", "execution"),
    [
        (order, *batches, EXECUTIONS[(i + j) % 3])
        for i, order in enumerate(["sequential", "shuffled", "generator"])
        for j, batches in enumerate([(3, False), (3, True), (None, False)])
    ],
)
def test_every_state_of_its_own_orders(
    order: str, batch_size: int | None, drop_last: bool, execution: dict[str, Any]
) -> None:
    """On any number of workers, since workers have no state. Each pair of values comes once."""
    arguments: dict[str, Any] = {"batch_size": batch_size, "drop_last": drop_last}

    def theirs(**execution: Any) -> Any:
        generator = None
        if order == "generator":
            generator = torch.Generator().manual_seed(3)
            torch.randn(700, generator=generator)  # so that its state is not that of its seed
        shuffle = order != "sequential"
        return StatefulDataLoader(
            Indices(LENGTH), shuffle=shuffle, generator=generator, **arguments, **execution
        )

    def ours(**workers: Any) -> Any:
        shuffle = order != "sequential"
        return StatefulGPULoader(
            Indices(LENGTH), shuffle=shuffle, seed=SEED, **arguments, **workers
        )

    several = (batch_size, drop_last, order) == (3, False, "shuffled")
    resumed_on: tuple[dict[str, Any], ...] = ({}, {"num_workers": 2}, {"num_workers": 3})
    assert_finishes_the_epoch(theirs, ours, execution, resumed_on if several else ({},))


def test_torchdatas_second_epoch_is_finished_as_our_first() -> None:
    """torchdata counts no epochs."""
    theirs = StatefulDataLoader(Indices(LENGTH), batch_size=2, shuffle=True)
    first, second = [], []
    for batches in (first, second):
        for batch in theirs:
            batches.append(batch.tolist())
            if batches is second and len(batches) == 2:
                state = copy.deepcopy(theirs.state_dict())
    loader = loaded(StatefulGPULoader(Indices(LENGTH), batch_size=2, shuffle=True), state)
    assert [batch.tolist() for batch in loader] == second[2:] != first[2:]


def test_a_failed_fetch_counts_as_a_request_and_not_as_a_batch() -> None:
    """Later batches are delivered and the failed one is not retried, as in torchdata."""

    class Broken(Indices):
        def __getitem__(self, index: int) -> int:
            return super().__getitem__(index) if index != 2 else 1 // 0

    theirs = StatefulDataLoader(Broken(LENGTH), batch_size=2)
    batches = iter(theirs)
    next(batches)
    with pytest.raises(ZeroDivisionError):
        next(batches)
    loader = StatefulGPULoader(Broken(LENGTH), batch_size=2)
    loader.load_state_dict(copy.deepcopy(theirs.state_dict()))
    assert [plain(batch) for batch in loader] == [plain(batch) for batch in batches]


def test_the_rest_may_have_another_batch_size() -> None:
    """The rest is an order of indices, however they are batched."""
    theirs = StatefulDataLoader(Indices(LENGTH), batch_size=3, shuffle=True)
    batches = iter(theirs)
    next(batches)
    state = copy.deepcopy(theirs.state_dict())
    rest = torch.cat(list(batches)).tolist()
    for batch_size in (1, 4, None):
        loader = StatefulGPULoader(Indices(LENGTH), batch_size=batch_size, shuffle=True)
        loader.load_state_dict(state)
        assert [index for batch in loader for index in plain(batch)] == rest


def test_a_resumed_torchdata_loader_writes_a_valid_state() -> None:
    make = partial(StatefulDataLoader, Indices(LENGTH), batch_size=2, shuffle=True)
    first = make()
    next(iter(first))
    second = loaded(make(), copy.deepcopy(first.state_dict()))
    states, rest = torchdata_run(second)
    for delivered, state in enumerate(states[:-1]):
        loader = loaded(StatefulGPULoader(Indices(LENGTH), batch_size=2, shuffle=True), state)
        assert [plain(batch) for batch in loader] == rest[delivered:]


def test_torchdatas_state_does_not_decide_our_seed() -> None:
    theirs = StatefulDataLoader(Indices(LENGTH), shuffle=True)
    next(iter(theirs))
    loader = StatefulGPULoader(Indices(LENGTH), shuffle=True, seed=SEED)
    loader.load_state_dict(copy.deepcopy(theirs.state_dict()))
    assert loader.state_dict()["seed"] == SEED


# Users' samplers.


def both(sampler: Callable[[], Any], **arguments: Any) -> tuple[Make, Make]:
    """Return makers of a torchdata loader and of ours, each with its own sampler."""

    def make(kind: Any, **execution: Any) -> Any:
        if arguments.get("batch_sampler"):
            return kind(Indices(LENGTH), batch_sampler=sampler(), **execution)
        return kind(Indices(LENGTH), sampler=sampler(), **{**arguments, **execution})

    return partial(make, StatefulDataLoader), partial(make, StatefulGPULoader, seed=SEED)


def generated() -> RandomSampler:
    return RandomSampler(Indices(LENGTH), generator=torch.Generator().manual_seed(8))


SAMPLERS: dict[str, Callable[[], Any]] = {
    "state on the sampler": partial(StatefulSampler, LENGTH),
    "state on the iterator": IteratorSampler,
    "a list": lambda: list(range(LENGTH))[::-1],
    "torch's distributed": partial(
        DistributedSampler, range(LENGTH), num_replicas=2, rank=1, seed=4
    ),
    "torchdata's distributed": partial(
        StatefulDistributedSampler, range(LENGTH), num_replicas=2, rank=0, seed=4
    ),
}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("kind", "batch_size", "execution"),
    [
        (kind, batch_size, EXECUTIONS[(i + j) % 3])
        for i, kind in enumerate(SAMPLERS)
        for j, batch_size in enumerate([2, None])
    ],
)
def test_every_state_of_a_users_sampler(
    kind: str, batch_size: int | None, execution: dict[str, Any]
) -> None:
    theirs, ours = both(SAMPLERS[kind], batch_size=batch_size)
    resumed_on: tuple[dict[str, Any], ...] = ({},)
    if batch_size:
        resumed_on = ({}, {"num_workers": 2})
    assert_finishes_the_epoch(theirs, ours, execution, resumed_on)


def test_a_sampler_need_not_know_its_length() -> None:
    class Unmeasured(StatefulSampler):
        def __len__(self) -> int:
            raise NotImplementedError

    theirs, ours = both(partial(Unmeasured, LENGTH), batch_size=None)
    states, batches = torchdata_run(theirs())
    assert [plain(batch) for batch in loaded(ours(), states[2])] == batches[2:]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("kind", "execution"),
    [
        (partial(StatefulBatchSampler, LENGTH), EXECUTIONS[0]),
        (partial(StatefulBatchSampler, LENGTH), EXECUTIONS[2]),
        (partial(IteratorSampler, 2), EXECUTIONS[1]),
        (lambda: BatchSampler(list(range(LENGTH))[::-1], 2, False), EXECUTIONS[2]),
    ],
    ids=["state", "state, snapshots", "iterator's", "torch's"],
)
def test_every_state_of_a_batch_sampler(kind: Callable[[], Any], execution: dict[str, Any]) -> None:
    theirs, ours = both(kind, batch_sampler=True)
    assert_finishes_the_epoch(theirs, ours, execution)


def test_another_batch_size_adds_no_pass_after_a_users_sampler() -> None:
    theirs, ours = both(partial(StatefulSampler, 6), batch_size=2)
    states, _ = torchdata_run(theirs())
    after = loaded(ours(), states[3])
    _, larger = both(partial(StatefulSampler, 6), batch_size=4)
    resumed = loaded(larger(), states[3])
    for _ in range(3):
        one, other = ([i for batch in each for i in plain(batch)] for each in (after, resumed))
        assert one == other


def test_a_sampler_whose_state_torchdata_has_left_out_is_refused() -> None:
    """torchdata asks neither torch's BatchSampler nor the sampler inside it."""
    theirs, ours = both(lambda: BatchSampler(StatefulSampler(LENGTH), 2, False), batch_sampler=True)
    states, batches = torchdata_run(theirs())
    for state in states[1:]:
        assert "StatefulSampler, which has a state" in str(refusal(ours(), state))
    loader = loaded(ours(), states[0])
    assert [plain(batch) for batch in loader] == batches


@executions
def test_every_state_of_torchs_own_shuffler_with_a_generator(execution: dict[str, Any]) -> None:
    """Its generator is seeded as before, and the sampler is iterated again from there."""
    theirs, ours = both(generated, batch_size=2)
    states, batches = torchdata_run(theirs(**execution))
    for delivered, state in enumerate(states[:-1]):
        loader = loaded(ours(), state)
        assert [plain(batch) for batch in loader] == batches[delivered:]


@pytest.mark.parametrize("kind", [DistributedSampler, StatefulDistributedSampler])
def test_the_epoch_that_a_distributed_sampler_was_set_to(kind: type[Any]) -> None:
    """torchdata's state does not hold it: the script sets it again."""

    def loader_of(loader_class: Any, epoch: int) -> Any:
        sampler = kind(range(LENGTH), num_replicas=2, rank=1)
        sampler.set_epoch(epoch)
        return loader_class(Indices(LENGTH), batch_size=2, sampler=sampler)

    theirs = loader_of(StatefulDataLoader, 3)
    batches = iter(theirs)
    next(batches)
    state = copy.deepcopy(theirs.state_dict())
    rest = [plain(batch) for batch in batches]
    loader = loaded(loader_of(StatefulGPULoader, 3), state)
    assert [plain(batch) for batch in loader] == rest


def test_a_sampler_that_cannot_be_copied_to_its_end_is_named() -> None:
    class Locked(StatefulSampler):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("holds a lock")

    theirs, ours = both(partial(Locked, LENGTH), batch_size=1)
    states, _ = torchdata_run(theirs(num_workers=2))
    assert "Locked, which fails: TypeError('holds a lock')" in str(refusal(ours(), states[-1]))
