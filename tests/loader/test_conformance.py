"""Every kind of loader in the table resumes exactly: on any workers, on a device, repeatedly."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Container, Iterable
from functools import partial
from typing import Any

import pytest

from tests.conformance import (
    assert_exact_on_all,
    assert_exact_resume,
    assert_same_rest,
    copy_of,
    few_places,
    loaded,
    same,
    through_json,
    uninterrupted,
)
from tests.device_loaders import EXECUTIONS as ON_A_DEVICE
from tests.device_loaders import make as make_on_device
from tests.device_loaders import photos
from tests.fake_gpu import FakeGpu, fake_gpu
from tests.fuzz.records import samples_of
from tests.generators import generators
from tests.stream_kinds import KINDS, LOADERS, OF_IMAGES, Make

__all__ = ["fake_gpu", "photos"]
pytestmark = pytest.mark.filterwarnings("ignore:.*samples of the iterable dataset are read again")

TWO: dict[str, Any] = {"num_workers": 2}
QUICK = ("order", "dataset with state", "plain iterable", "shards, three lanes")
"""Kinds that the fast tests resume at every boundary."""
ON_WORKERS = ("order", "dataset with state", "shards, three lanes", "photographs")
"""Kinds that the fast tests resume on other workers."""
UNSEEN = (
    "order: ",
    "sampler by position",
    "DALI's shard",
    "a sampler of shuffles in place",
    "albumentations in",
)
"""Kinds that are no different from others for workers, which see neither orders nor holders."""


def is_tied(make: Make) -> bool:
    """Return whether workers keep user state, so that their number must stay."""
    return make()._engine.plan.has_worker_states


def cases(names: Iterable[str], fast: Container[str]) -> list[Any]:
    """Return the names as cases, with those in ``fast`` marked as fast tests."""
    return [pytest.param(name, marks=[pytest.mark.fast] * (name in fast)) for name in names]


@pytest.mark.parametrize("name", LOADERS)
def test_the_middle_and_the_end_of_an_epoch_resume_exactly(name: str) -> None:
    """A6: samples, draws and pixels.

    A load after ``iter()`` takes effect. A finished epoch is followed by an empty pass or by the
    next epoch (``on_epoch_boundary``). A finished iterator stays finished. None of the caller's
    generators changes.
    """
    make = LOADERS[name]
    make()  # imports what it needs
    before = generators()
    expected, states = uninterrupted(make(), 2)
    middle = 0, len(expected[0]) // 2
    resumed = make()
    batches = iter(resumed)
    resumed.load_state_dict(through_json(states[middle]))
    assert resumed.state_dict() == states[middle]
    assert same([copy_of(batch) for batch in batches], expected[0][middle[1] :])
    assert_same_rest(resumed, expected, (1, 0), 2)
    for boundary, rest in (("empty", []), ("next_epoch", expected[1])):
        if not expected[0]:
            break
        resumed = make(on_epoch_boundary=boundary)
        batches = iter(loaded(resumed, states[0, len(expected[0])]))
        assert same([copy_of(batch) for batch in batches], rest)
        ended = resumed.state_dict()
        assert next(batches, None) is None
        assert resumed.state_dict() == ended
        assert (ended["epoch"], ended["position"]) == (1 if boundary == "empty" else 2, 0)
    assert generators() == before


@pytest.mark.fuzz
@pytest.mark.parametrize("name", cases(LOADERS, QUICK))
def test_every_state_resumes_exactly(name: str) -> None:
    """A1 to A7, A9, A12, B1: at every boundary, into fresh and used loaders, several times.

    The resumed loader's states equal those of the uninterrupted run.
    """
    make = LOADERS[name]
    follow = not is_tied(make) and "snapshot" not in name
    assert_exact_resume(make, states_follow=follow)


@pytest.mark.processes
@pytest.mark.parametrize(
    "name", cases([name for name in LOADERS if not name.startswith(UNSEEN)], ON_WORKERS)
)
def test_worker_processes_and_threads_make_no_difference(name: str) -> None:
    """B2: batches and states are the same; where workers keep states, their number stays.

    One loader, whose pass was broken off, resumes at one place after another. Images are made in
    threads and in processes in turn, the first kind in both.
    """
    make, kept = LOADERS[name], {**TWO, "persistent_workers": True}
    ways = [(TWO, kept)]
    if is_tied(make):
        rare = {**kept, "snapshot_every_n_steps": 3}
        ways = [(TWO, TWO), (rare, rare)]
    elif name in OF_IMAGES:
        number = [*OF_IMAGES].index(name)
        ways.append(({**TWO, "worker_type": "process"}, {**kept, "worker_type": "process"}))
        ways = ways if number == 0 else ways[number % 2 :][:1]
    expected, states = uninterrupted(make(), 2)
    for way, of_resumed in ways:
        found, of_found = uninterrupted(make(**way), 2)
        if not is_tied(make):
            assert same(found, expected)
            # After a rare snapshot, workers count steps, but the user's thread does not.
            assert of_found == states or make().snapshot_every_n_steps > 1
        loader = make(**of_resumed)
        for place, end in few_places(of_found).items():
            next(iter(loader), None)
            loader.load_state_dict(through_json(of_found[place]))
            assert loader.state_dict() == of_found[place]
            assert_same_rest(loader, found, place, end, way)


@pytest.mark.parametrize("name", LOADERS)
def test_construction_iteration_and_state_have_no_side_effects(name: str) -> None:
    """A10: before the first batch, no worker starts and nothing is drawn."""
    before, children = generators(), multiprocessing.active_children()
    loader = LOADERS[name](num_workers=2)
    batches = iter(loader)
    states = [loader.state_dict() for _ in range(2)]
    assert same(states[0], states[1])
    assert states[0] is not states[1]
    assert multiprocessing.active_children() == children
    assert generators() == before
    del batches


@pytest.mark.parametrize("name", KINDS)
def test_the_states_of_earlier_batches_are_kept(name: str) -> None:
    """Trainers that fetch ahead need them."""
    loader = KINDS[name]()
    _, states = uninterrupted(KINDS[name](), 2)
    earlier: list[Any] = []
    for epoch in range(2):
        for delivered, _ in enumerate(loader):
            earlier.append(states[epoch, delivered])
            for ago, then in enumerate(earlier[:-17:-1], start=1):
                assert loader.state_dict(batches_ago=ago) == then


# Executions and start methods, for one kind of each way to make batches.


EXECUTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "order": ({}, {"num_workers": 1}, TWO, {"num_workers": 3, "persistent_workers": True}),
    "calls without length": ({}, TWO, {"num_workers": 3, "prefetch_factor": 4}),
    "shards, three lanes": (
        {},
        {"num_workers": 1, "prefetch_factor": 4},
        {"num_workers": 3, "prefetch_factor": 1, "in_order": False},
    ),
    "photographs": (
        {},
        {"num_workers": 3, "worker_type": "thread"},
        {"num_workers": 3, "worker_type": "process"},
        {"num_workers": 4, "threads_per_process": 2},
    ),
    "shards of photographs": (
        {},
        {"num_workers": 3, "prefetch_factor": 4},
        {"num_workers": 2, "prefetch_factor": 3, "worker_type": "process"},
        {"num_workers": 6, "threads_per_process": 3},
    ),
}


@pytest.mark.processes
@pytest.mark.parametrize("name", EXECUTIONS)
def test_from_each_execution_to_each_other(name: str) -> None:
    """B2: at every batch."""
    assert_exact_on_all(LOADERS[name], EXECUTIONS[name])


@pytest.mark.processes
def test_from_each_execution_on_a_device_to_each_other(photos: Any, fake_gpu: FakeGpu) -> None:
    """B2, D9: at every batch; the decoder delays, reorders and refuses images."""
    assert_exact_on_all(partial(make_on_device, photos), ON_A_DEVICE)
    assert fake_gpu.decoder.num_calls > 0


@pytest.mark.processes
@pytest.mark.parametrize(
    ("method", "name", "threads"),
    [
        ("forkserver", "order", 1),
        ("forkserver", "shards, three lanes", 1),
        ("forkserver", "photographs", 1),
        ("forkserver", "photographs", 2),
        ("forkserver", "iterable with state", 1),
        ("forkserver", "calls for batches of photographs", 1),
        ("fork", "shards of photographs", 2),
        ("spawn", "photographs", 2),
    ],
)
def test_every_start_method_gives_the_same_stream(method: str, name: str, threads: int) -> None:
    """B2: with persistent workers, resumed in the middle."""
    make, kept = LOADERS[name], {**TWO, "persistent_workers": True}
    workers = {**kept, "multiprocessing_context": method}
    if name in OF_IMAGES:
        workers |= {"worker_type": "process", "num_workers": 2 * threads}
        workers |= {"threads_per_process": threads} if threads > 1 else {}
    expected, states = uninterrupted(make(**kept) if is_tied(make) else make(), 2)
    loader = make(**workers)
    for place in ((0, 2), (1, 1)):
        loader.load_state_dict(through_json(states[place]))
        assert_same_rest(loader, expected, place, 2, method)


# A device simulated by the CPU.


DEVICES: dict[str, tuple[str, dict[str, Any]]] = {
    "photographs": ("photographs", {}),
    "order": ("order", {}),
    "half of them left to the CPUs": ("photographs", {"cpu_share": 0.5}),
    "all recipes": ("photographs, all recipes", {}),
    "own transform": ("photographs, own transform", {}),
    "own collate_fn": ("photographs, own collate_fn", {}),
    "unbatched": ("photographs, unbatched", {}),
    "shards": ("shards of photographs, batch_transform", {}),
    "damaged shards": ("shards of damaged photographs", {}),
    "calls": ("calls for photographs", {}),
    "calls for batches": ("calls for batches of photographs", {}),
    "batches that are no images": ("calls for batches, empty epochs", {}),
}


@pytest.mark.fuzz
@pytest.mark.parametrize("name", DEVICES)
def test_a_device_resumes_exactly(name: str, fake_gpu: FakeGpu) -> None:
    """D9: images are decoded and augmented on the device; all other tensors are moved to it."""
    kind, arguments = DEVICES[name]
    make = partial(LOADERS[kind], device="cuda", **arguments)
    assert_exact_resume(make, other=(TWO,), states_follow=True)


# Other batches and other ranks: the same samples under the same keys.


POSITIONED = [
    "order",
    "weighted draws",
    "mixture",
    "mixture, in order",
    *(name for name in LOADERS if name.startswith("sampler by position")),
    "photographs",
    "mixture of photographs",
]
TORCHS = {"collate_fn": None}
"""Arguments that let batches be taken apart."""


def samples(batches: Any) -> list[Any]:
    return [sample for batch in batches for sample in samples_of(batch)]


def in_turn(
    make: Make, batch_size: int, num_replicas: int, state: dict[str, Any] | None = None
) -> list[Any]:
    """Return an epoch's samples in their global order, from one loader for each rank."""
    ranks = []
    for rank in range(num_replicas):
        loader = make(
            batch_size=batch_size // num_replicas, num_replicas=num_replicas, rank=rank, **TORCHS
        )
        if state is not None:
            loader.load_state_dict(through_json(state))
        ranks.append(samples(loader))
    return list(itertools.chain(*zip(*ranks, strict=True)))


@pytest.mark.fuzz
@pytest.mark.parametrize("name", cases(POSITIONED, ("mixture", "sampler by position, weighted")))
def test_another_batch_size_continues_with_the_same_samples(name: str) -> None:
    """B4: order, draws and pixels are the same."""
    make = partial(LOADERS[name], **TORCHS)
    expected, states = uninterrupted(make(), 1)
    whole = samples(expected[0])
    for place in ((0, 1), (0, len(expected[0]) - 1)):
        for batch_size in (1, 3, 100):
            resumed = loaded(make(batch_size=batch_size), through_json(states[place]))
            rest = samples(resumed)
            assert rest == whole[len(whole) - len(rest) :]
            assert len(rest) == len(whole) - len(samples(expected[0][: place[1]]))


@pytest.mark.fuzz
@pytest.mark.parametrize("name", cases(POSITIONED, ("mixture", "sampler by position, weighted")))
def test_ranks_together_deliver_the_same_global_batches(name: str) -> None:
    """B3, B6: from the start, and from a state saved by another number of ranks."""
    make = partial(LOADERS[name], **TORCHS)
    alone = make(batch_size=6)
    expected, states = uninterrupted(alone, 1)
    whole, taken = samples(expected[0]), samples(expected[0][:2])
    for num_replicas in (2, 3):
        assert in_turn(make, 6, num_replicas)[: len(whole)] == whole
        rest = in_turn(make, 6, num_replicas, states[0, 2])
        assert rest[: len(whole) - len(taken)] == whole[len(taken) :]
    of_ranks = [make(batch_size=3, num_replicas=2, rank=rank) for rank in range(2)]
    for loader in of_ranks:
        batches = iter(loader)
        next(batches), next(batches)
        del batches
    assert of_ranks[0].state_dict() == of_ranks[1].state_dict()
    resumed = loaded(make(batch_size=6), of_ranks[1].state_dict())
    assert samples(resumed) == whole[len(taken) :]
