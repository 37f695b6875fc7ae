"""Workers on other machines deliver the stream of local workers, whichever worker is lost (F8)."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stateful_gpu_loader import StatefulGPULoader, WorkerLost
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.engine.workers import dispatch
from stateful_gpu_loader.engine.workers.cluster import Event, Severed
from tests.conformance import assert_exact_resume, copy_of, same, uninterrupted
from tests.datasets.shards import NoisyShards
from tests.fake_cluster import FakeCluster, FakeWorkers
from tests.fake_gpu import FakeGpu, fake_gpu
from tests.map_datasets import Noisy
from tests.stream_kinds import KINDS
from tests.trainer_data import photos

__all__ = ["fake_gpu"]

EPOCHS = 2


def of_one_machine(kind: str, num_workers: int) -> tuple[Any, Any]:
    """Return batches and states of the same loader with local workers."""
    loader = KINDS[kind]()
    if loader._engine.plan.has_worker_states:
        loader = KINDS[kind](num_workers=num_workers, worker_type="process")
    return uninterrupted(loader, EPOCHS)


class Faults:
    """Loses a worker or an answer before a share of all events."""

    def __init__(self, seed: int, rate: float) -> None:
        self._random = random.Random(seed)
        self._rate = rate

    def __call__(self, cluster: FakeCluster) -> Event | None:
        chance = self._random.random()
        if chance > self._rate:
            return None
        if chance > self._rate / 2:
            return cluster.lose(self._random.choice(list(cluster.workers)))
        return cluster.lose_answer()


SEEN_BY_WORKERS = [
    "order",
    "unbatched",
    "epochs of several lengths",
    "a batch sampler with state",
    *(name for name in KINDS if name.startswith(("calls", "dataset", "shards"))),
    *(name for name in KINDS if "itera" in name and "sampler" not in name),
]
"""Kinds of which workers get other data, or get them in another way."""


@pytest.mark.parametrize("kind", SEEN_BY_WORKERS)
def test_batches_and_states_are_those_of_one_machine(kind: str) -> None:
    """With and without lost workers and answers."""
    expected, states = of_one_machine(kind, 3)
    # Where workers keep states, a loss costs all batches in flight.
    faults = Faults(1, 0.05 if KINDS[kind]()._engine.plan.has_worker_states else 0.25)
    for workers in (FakeWorkers(seed=5), FakeWorkers(seed=1, fault=faults)):
        loader = KINDS[kind](num_workers=3, worker_type=workers, max_worker_restarts=1000)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found, of_found = uninterrupted(loader, EPOCHS)
        assert same(found, expected)
        assert (loader.worker_restarts > 0) == (workers.seed == 1)
        if workers.seed == 5 or not loader._engine.plan.has_worker_states:
            assert of_found == states  # after a loss, snapshots of such workers differ


def make(**arguments: Any) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(
        Noisy(40), **{"batch_size": 4, "seed": 1, "shuffle": True, **arguments}
    )


def deliver(loader: StatefulGPULoader[Any], delivered: list[Any]) -> None:
    """Iterate, and append each batch to ``delivered``, until an exception."""
    for batch in loader:
        delivered.append(copy_of(batch))


def test_resumes_to_and_from_other_workers() -> None:
    remote = {"num_workers": 3, "worker_type": FakeWorkers()}
    others = ({}, {"num_workers": 1, "worker_type": FakeWorkers()})
    assert_exact_resume(lambda **changes: make(**{**remote, **changes}), other=others)
    assert_exact_resume(make, other=(remote,))


def test_a_lost_worker_costs_the_others_nothing() -> None:
    workers = FakeWorkers()
    loader = make(num_workers=4, worker_type=workers, prefetch_factor=2)
    batches = iter(loader)
    found = [copy_of(next(batches))]
    (cluster,) = workers.clusters
    sent, started = cluster.num_sent, cluster.num_started
    is_lost = [False]

    def lose_one(cluster: FakeCluster) -> Event | None:
        busy = [number for number, worker in cluster.workers.items() if worker.messages]
        if is_lost[0] or not busy:
            return None
        is_lost[0] = True
        return cluster.lose(busy[0])

    workers.fault = lose_one
    with pytest.warns(RuntimeWarning, match=r"worker \d.*a test ended it"):
        found += [copy_of(batch) for batch in batches]
    assert same(found, [copy_of(batch) for batch in make()])
    assert cluster.num_started == started + 1
    assert cluster.num_sent <= sent + 10
    assert loader.worker_restarts == 1


def test_a_batch_that_ends_every_worker_is_named() -> None:
    def lose_at_index_0(cluster: FakeCluster) -> Event | None:
        for number, worker in cluster.workers.items():
            if worker.messages and 0 in worker.messages[0][1].request.index_list():
                return cluster.lose(number)
        return None

    workers = FakeWorkers(fault=lose_at_index_0)
    loader = make(num_workers=3, worker_type=workers, max_worker_restarts=2)
    expected = [copy_of(batch) for batch in make()]
    delivered: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(WorkerLost, match=r"0.*max_worker_restarts.*2"):
            deliver(loader, delivered)
        state = loader.state_dict()
        workers.fault = lambda cluster: None
        delivered += [copy_of(batch) for batch in loader]
    resumed = make()
    resumed.load_state_dict(state)
    assert same(delivered, expected)
    rest = [copy_of(batch) for batch in resumed]
    assert same(rest, expected[len(expected) - len(rest) :])


def test_a_lost_head_is_named_and_the_state_is_intact() -> None:
    def sever(cluster: FakeCluster) -> Event | None:
        return Severed("the head was lost", "use another cluster") if cluster.num_sent > 9 else None

    workers = FakeWorkers(fault=sever)
    loader = make(num_workers=2, worker_type=workers)
    delivered: list[Any] = []
    with pytest.raises(WorkerLost, match=r"the head was lost.*use another cluster"):
        deliver(loader, delivered)
    resumed = make(num_workers=2, worker_type=FakeWorkers())
    resumed.load_state_dict(loader.state_dict())
    delivered += [copy_of(batch) for batch in resumed]
    assert same(delivered, [copy_of(batch) for batch in make()])


def test_workers_that_never_start_are_given_up() -> None:
    workers = FakeWorkers(fault=lambda cluster: cluster.lose(next(iter(cluster.workers))))
    loader = make(num_workers=2, worker_type=workers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(WorkerLost, match="keeps workers from starting"):
            next(iter(loader))


@pytest.mark.parametrize("timeout", [0, 0.2])
def test_a_wait_without_any_worker(monkeypatch: pytest.MonkeyPatch, timeout: float) -> None:
    """The user gets a warning, and a timeout ends the wait."""
    monkeypatch.setattr(dispatch, "_SECONDS_TO_START", 0.1)
    busy, resources = FakeCluster._busy, FakeCluster.resources
    has_room: list[FakeCluster] = []

    def room_comes(cluster: FakeCluster) -> str:
        has_room.append(cluster)
        return resources(cluster)

    monkeypatch.setattr(FakeCluster, "resources", room_comes)
    monkeypatch.setattr(FakeCluster, "_busy", lambda self: busy(self) if has_room else [])
    loader = make(num_workers=2, worker_type=FakeWorkers(), timeout=timeout)
    text = "the fake cluster has none"
    if timeout:
        with pytest.raises(WorkerLost, match=text):
            next(iter(loader))
    else:
        with pytest.warns(RuntimeWarning, match=text):
            found = [copy_of(batch) for batch in loader]
        assert same(found, [copy_of(batch) for batch in make()])


def test_a_wait_for_a_worker_begins_when_none_has_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does not begin while ``next()`` waits for a worker that hangs."""
    workers = FakeWorkers()
    loader = make(num_workers=1, worker_type=workers, timeout=0.2)
    batches = iter(loader)
    found = [copy_of(next(batches))]
    (cluster,) = workers.clusters
    monkeypatch.setattr(dispatch, "_SECONDS_TO_START", 0.1)
    cluster.held |= {*cluster.workers, max(cluster.workers) + 1}  # the next one, too
    look = dispatch.Dispatch.look_for_overdue

    def look_and_release(self: Any, began: float, timeout: float) -> None:
        is_lost = cluster.num_started > 1
        look(self, began, timeout)
        if is_lost:
            monkeypatch.setattr(dispatch, "_SECONDS_TO_START", 1e9)
            cluster.release()

    monkeypatch.setattr(dispatch.Dispatch, "look_for_overdue", look_and_release)
    with pytest.warns(RuntimeWarning, match="DataLoader timed out after"):
        found += [copy_of(batch) for batch in batches]
    assert same(found, [copy_of(batch) for batch in make()])


def test_a_hung_worker_alone_is_replaced() -> None:
    workers = FakeWorkers()
    loader = make(num_workers=2, worker_type=workers, timeout=0.2)
    batches = iter(loader)
    found = [copy_of(next(batches))]
    (cluster,) = workers.clusters
    hung = min(cluster.workers)
    cluster.held.add(hung)
    with pytest.warns(RuntimeWarning, match=r"DataLoader timed out after 0\.2 seconds"):
        found += [copy_of(batch) for batch in batches]
    assert same(found, [copy_of(batch) for batch in make()])
    assert loader.worker_restarts


def test_an_interrupt_while_a_request_is_sent_loses_no_batch() -> None:
    workers = FakeWorkers()
    # The only worker always has room, so the user's thread sends each request.
    loader = make(num_workers=1, worker_type=workers)
    batches = iter(loader)
    found = [copy_of(next(batches))]
    (cluster,) = workers.clusters
    send = cluster.send

    def interrupted(*arguments: Any, **given: Any) -> None:
        cluster.send = send  # type: ignore[method-assign]
        raise KeyboardInterrupt

    cluster.send = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found += [copy_of(batch) for batch in batches]
    assert same(found, [copy_of(batch) for batch in make()])


class _Unsendable:
    """An index that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("it stays here")


def test_a_request_that_cannot_be_sent_fails_alone() -> None:
    indices = [[0, 1], [2, 3], [4, _Unsendable()], [5, 6], [7, 8]]
    loader = StatefulGPULoader(
        Noisy(9), batch_sampler=indices, num_workers=2, worker_type=FakeWorkers()
    )
    batches = iter(loader)
    found = [next(batches)["index"].tolist() for _ in range(2)]
    with pytest.raises(TypeError, match="it stays here"):
        next(batches)
    found += [batch["index"].tolist() for batch in batches]
    assert found == [[0, 1], [2, 3], [5, 6], [7, 8]]


def test_workers_that_do_not_start_leave_the_others_alone() -> None:
    def lose_all_but_the_first(cluster: FakeCluster) -> Event | None:
        starting = [
            number
            for number, worker in cluster.workers.items()
            if worker.place and not worker.has_started
        ]
        return cluster.lose(starting[0]) if starting else None

    workers = FakeWorkers(fault=lose_all_but_the_first)
    loader = make(num_workers=3, worker_type=workers)
    with pytest.warns(RuntimeWarning, match="worker") as warned:
        found = [copy_of(batch) for batch in loader]
    assert any("in a row did not start" in str(each.message) for each in warned)
    assert same(found, [copy_of(batch) for batch in make()])


@pytest.mark.parametrize("seed", range(2))
def test_a_lane_stays_where_it_was_damaged(seed: int) -> None:
    """Its reader is past the damage; a new reader would meet the damage again."""

    def errors(loader: StatefulGPULoader[Any]) -> tuple[list[Any], int]:
        found, batches, num_errors = [], iter(loader), 0
        while True:
            try:
                found.append(copy_of(next(batches)))
            except StopIteration:
                return found, num_errors
            except OSError:
                num_errors += 1

    def build(**given: Any) -> StatefulGPULoader[Any]:
        return StatefulGPULoader(
            DamagedShards((5, 8, 3, 8), lanes=4), batch_size=2, seed=1, **given
        )

    workers = FakeWorkers(seed=seed)
    assert same(errors(build(num_workers=3, worker_type=workers)), errors(build()))


class DamagedShards(NoisyShards):
    """One sample of one shard raises."""

    def sample(self, shard: int, number: int) -> Any:
        if (shard, number) == (1, 5):
            raise OSError("torn")
        return super().sample(shard, number)


def test_it_works_with_the_workers_that_there_are() -> None:
    """One of four workers starts; the others come later, or never."""

    def hold_all_but_one(cluster: FakeCluster) -> Event | None:
        cluster.held.update(list(cluster.workers)[1:])
        return None

    for kind in ("order", "shards"):
        expected, states = of_one_machine(kind, 4)
        workers = FakeWorkers(fault=hold_all_but_one)
        found, of_found = uninterrupted(KINDS[kind](num_workers=4, worker_type=workers), EPOCHS)
        assert same(found, expected)
        assert of_found == states


@pytest.mark.parametrize("persistent", [False, True])
def test_break_and_close_leave_no_worker(persistent: bool) -> None:
    workers = FakeWorkers()
    loader = make(num_workers=2, worker_type=workers, persistent_workers=persistent)
    for _ in loader:
        break
    assert workers.clusters[0].is_closed is not persistent
    assert len(list(loader)) == 10
    assert len(workers.clusters) == (1 if persistent else 2)
    del loader
    assert all(cluster.is_closed for cluster in workers.clusters)


def test_nothing_is_connected_before_the_first_batch() -> None:
    workers = FakeWorkers()
    loader = make(num_workers=2, worker_type=workers)
    loader.state_dict()
    batches = iter(loader)
    assert not workers.clusters
    next(batches)
    assert len(workers.clusters) == 1


def test_threads_need_work_that_draws_nothing() -> None:
    with pytest.raises(ValueError, match=r"threads=2 .*Noisy"):
        make(num_workers=2, worker_type=FakeWorkers(threads=2))
    with pytest.raises(ValueError, match=r"multiprocessing_context="):
        make(num_workers=2, worker_type=FakeWorkers(), multiprocessing_context="spawn")


LAST = {
    "normalised": [T.Normalize([0.5] * 3, [0.25] * 3)],
    "half precision": [T.ToDtype(torch.float16, scale=True)],
    "channels last": [T.ToMemoryFormat(torch.channels_last), T.Normalize([0.5] * 3, [0.25] * 3)],
    "layout first": [
        T.ToMemoryFormat(torch.channels_last),
        T.RandomVerticalFlip(),
        T.Normalize([0.5] * 3, [0.25] * 3),
    ],
    "bytes": [],
    "drawn after": [T.Normalize([0.5] * 3, [0.25] * 3), T.RandomErasing(1.0)],
}
"""Last recipes."""


@pytest.mark.parametrize("last", LAST)
def test_images_cross_as_bytes_and_arrive_as_they_were(last: str, tmp_path: Path) -> None:
    source = photos(tmp_path, num_images=8)
    recipes = [T.RandomResizedCrop(48), T.RandomHorizontalFlip(), *LAST[last]]
    given = {"batch_size": 4, "shuffle": True, "seed": 2, "transform": recipes}
    workers = FakeWorkers()
    expected = list(StatefulGPULoader(source, **given))
    found = list(StatefulGPULoader(source, num_workers=2, worker_type=workers, **given))
    assert same(found, expected)
    assert [images.stride() for images, _ in found] == [images.stride() for images, _ in expected]
    crossed = {None if packed.images is None else packed.images.dtype for packed in workers.packed}
    assert crossed == {None if last in ("bytes", "drawn after") else np.dtype(np.uint8)}


@pytest.mark.parametrize("decode_on", ["device", "workers"])
def test_on_a_device(decode_on: str, fake_gpu: FakeGpu, tmp_path: Path) -> None:
    source = photos(tmp_path, num_images=8)
    recipes = [T.RandomResizedCrop(48), T.Normalize([0.5] * 3, [0.25] * 3)]
    given = {"batch_size": 4, "seed": 2, "transform": recipes}
    workers = FakeWorkers(decode_on=decode_on)
    there = {"device": "cuda", "num_workers": 2}
    loader = StatefulGPULoader(source, **there, worker_type=workers, **given)
    expected = StatefulGPULoader(source, **given)
    if decode_on == "device":
        expected = StatefulGPULoader(source, **there, **given)
    assert same(list(loader), list(expected))
    crossed = {packed.images is not None for packed in workers.packed}
    assert crossed == {decode_on == "workers"}
    assert loader.state_dict()["fingerprint"] == expected.state_dict()["fingerprint"]
