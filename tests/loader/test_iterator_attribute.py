"""``loader._iterator``, which trainers and programs set to None to end workers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stateful_gpu_loader import StatefulGPULoader, start_workers
from tests.conformance import copy_of, same, uninterrupted
from tests.device_loaders import make as make_on_device
from tests.device_loaders import photos
from tests.engine.workers.fakes import children
from tests.fake_gpu import FakeGpu, fake_gpu
from tests.makers import make_map, make_stateful

__all__ = ["fake_gpu", "photos"]

KEPT: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}


def ours() -> list[str]:
    """Return the names of threads started by the package or by multiprocessing's queues."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if "stateful_gpu_loader" in name or "QueueFeeder" in name]


def all_batches(loader: StatefulGPULoader[Any]) -> list[Any]:
    return [copy_of(batch) for batch in loader]


@pytest.mark.processes
@pytest.mark.parametrize("make", [make_map, make_stateful])
@pytest.mark.parametrize("broken_off", [True, False])
def test_none_ends_persistent_workers(make: Callable[..., Any], broken_off: bool) -> None:
    """Neither processes nor threads are left, and the next pass is unchanged."""
    expected, _ = uninterrupted(make(**KEPT), 3)
    children_before, threads_before = children(), ours()
    loader = make(**KEPT)
    if broken_off and make is make_map:
        next(iter(loader))
    else:
        assert same(all_batches(loader), expected[0])
    assert children() > children_before
    loader._iterator = None
    assert (children(), ours()) == (children_before, threads_before)
    assert loader._iterator is None
    assert same(all_batches(loader), expected[1])
    assert same(all_batches(loader), expected[2])


def test_none_ends_workers_that_have_not_begun() -> None:
    before = children()
    loader = make_map(num_workers=2)
    start_workers(loader)
    loader._iterator = None
    assert children() == before


def test_none_leaves_a_live_iterator_alone() -> None:
    """The loader drops its reference, like torch's. The workers end with the iterator."""
    expected, _ = uninterrupted(make_map(), 2)
    before = children()
    loader = make_map(**KEPT)
    live = iter(loader)
    found = [copy_of(next(live))]
    loader._iterator = None
    assert same(found + [copy_of(batch) for batch in live], expected[0])
    assert children() == before
    assert same(all_batches(loader), expected[1])


def test_none_ends_threads_and_the_stage_of_the_device(photos: Path, fake_gpu: FakeGpu) -> None:
    """After a pass that was broken off."""
    expected, _ = uninterrupted(make_on_device(photos, batch_size=1), 2)
    before = ours()
    loader = make_on_device(photos, batch_size=1, prefetch_factor=1, **KEPT)
    next(iter(loader))
    assert len(ours()) == len(before) + 4
    loader._iterator = None
    assert ours() == before
    assert same(all_batches(loader), expected[1])


def test_a_live_iterator_and_the_next_share_the_device(photos: Path, fake_gpu: FakeGpu) -> None:
    """A decoder serves one thread at a time."""
    expected, _ = uninterrupted(make_on_device(photos), 2)
    num_places = len(fake_gpu.places)
    loader = make_on_device(photos, **KEPT)
    live = iter(loader)
    found = [copy_of(next(live))]
    for _ in range(2):
        loader._iterator = None
    following = iter(loader)
    both = [(copy_of(batch), copy_of(next(following))) for batch in live]
    assert same(found + [one for one, _ in both], expected[0])
    assert same([other for _, other in both], expected[1][: len(both)])
    assert len(fake_gpu.places) == num_places + 1


@pytest.mark.processes
@pytest.mark.parametrize("make", [make_map, make_stateful])
def test_programs_end_persistent_workers_by_torchs_method(make: Callable[..., Any]) -> None:
    """``if loader._iterator is not None: loader._iterator._shutdown_workers()``."""
    expected, _ = uninterrupted(make(**KEPT), 2)
    before = children()
    loader = make(**KEPT)
    assert loader._iterator is None
    assert same(all_batches(loader), expected[0])
    assert loader._iterator is not None
    assert all(worker.is_alive() for worker in loader._iterator._workers)
    loader._iterator._shutdown_workers()
    assert children() == before
    assert same(all_batches(loader), expected[1])


def test_a_program_keeps_its_own_iterator_there() -> None:
    """The program takes one batch at a time, and starts again at the end."""
    expected, _ = uninterrupted(make_map(), 1)
    loader = make_map()
    loader._iterator = iter(loader)
    assert same([copy_of(batch) for batch in loader._iterator], expected[0])
    loader._iterator = None
    assert loader._iterator is None


def test_an_iterator_by_torchs_private_method() -> None:
    """The inherited method would return torchdata's iterator, with other order and draws."""
    expected, _ = uninterrupted(make_map(), 1)
    assert same([copy_of(batch) for batch in make_map()._get_iterator()], expected[0])
