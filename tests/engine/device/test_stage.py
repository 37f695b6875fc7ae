"""The stage: its threads, the order of its batches, and how it ends; see also tests/pretend_gpu."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from functools import partial

import pytest
import torch

from stateful_gpu_loader.engine.device.stage import Stage
from stateful_gpu_loader.state import forks
from tests.datasets.storage.processes import in_a_fork
from tests.fake_gpu import FakePlace
from tests.patience import seconds


@pytest.fixture
def place() -> FakePlace:
    place = FakePlace()
    place.open()
    return place


def filled(value: int) -> torch.Tensor:
    return torch.full((4,), value)


def test_a_batch_is_begun_while_the_one_before_it_is_ended(place: FakePlace) -> None:
    """At most two batches are in the stage, so memory holds the decoded pixels of two."""
    stage = Stage(place)
    started: list[int] = []
    ended: list[int] = []
    second_has_begun = threading.Event()

    def begin(number: int) -> int:
        started.append(number)
        if number == 1:
            second_has_begun.set()
        return number

    def end(number: int) -> int:
        if number == 0:
            assert second_has_begun.wait(20)
            time.sleep(0.05)
            assert started == [0, 1], "the third waits until the second is being ended"
        ended.append(number)
        return 10 * number

    tasks = [stage.submit(partial(begin, number), end) for number in range(5)]
    found = []
    for task in tasks:
        assert task.wait(20)
        found.append(task.take(place))
    assert (found, started, ended) == ([0, 10, 20, 30, 40], list(range(5)), list(range(5)))
    assert len(place.stage_threads) == 2


@pytest.mark.parametrize("failing", ["first", "last", "none"])
def test_batches_are_taken_in_order_and_an_error_in_either_step_keeps_its_turn(
    place: FakePlace, failing: str
) -> None:
    stage = Stage(place)

    def step(name: str, batch: torch.Tensor) -> torch.Tensor:
        if name == failing and batch[0] % 2:
            raise KeyError(int(batch[0]))
        return batch

    def begin(number: int) -> torch.Tensor:
        return step("first", filled(number))

    tasks = [stage.submit(partial(begin, number), partial(step, "last")) for number in range(6)]
    for number, task in enumerate(tasks):
        assert task.wait(20)
        if failing != "none" and number % 2:
            with pytest.raises(KeyError, match=str(number)):
                task.take(place)
        else:
            batch = task.take(place)
            assert batch.tolist() == [number] * 4
            assert place.received[-1] == batch.data_ptr()


def test_a_cancelled_batch_is_not_made(place: FakePlace) -> None:
    stage, is_working, may_continue = Stage(place), threading.Event(), threading.Event()

    def first() -> None:
        is_working.set()
        assert may_continue.wait(20)

    made: list[int] = []
    stage.submit(first)
    assert is_working.wait(20)
    second, third = (stage.submit(lambda number=number: made.append(number)) for number in (2, 3))
    second.cancel()
    may_continue.set()
    assert third.wait(20)
    assert made == [3]


def test_no_finished_batch_is_held(place: FakePlace) -> None:
    """Neither by the thread, which waits for the next task, nor by the finished task."""
    stage = Stage(place)
    task = stage.submit(partial(filled, 1))
    assert task.wait(20)
    batch = task.take(place)
    stage.submit(lambda: None).wait(20)
    gone = weakref.ref(batch)
    del batch
    assert gone() is None


def test_an_unreferenced_stage_ends_its_threads(place: FakePlace) -> None:
    stage = Stage(place)
    assert stage.submit(threading.current_thread).wait(20)
    thread = stage.submit(threading.current_thread)
    thread.wait(20)
    worker = thread.take(place)
    del stage
    gc.collect()
    worker.join(seconds(2))
    assert not worker.is_alive()


def test_a_thread_that_cannot_be_started_is_tried_again(
    place: FakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, start = Stage(place), threading.Thread.start
    with monkeypatch.context() as patched:

        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            stage.submit(partial(filled, 1))
    assert threading.Thread.start is start
    task = stage.submit(partial(filled, 2))
    assert task.wait(20)
    assert task.take(place).tolist() == [2] * 4


def test_a_pause_waits_for_batches_in_progress(place: FakePlace) -> None:
    stage = Stage(place)
    stage.pause()
    done: list[int] = []
    for number in range(20):
        stage.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    stage.pause()
    assert done == list(range(20))


def test_a_fork_waits_for_the_running_step(place: FakePlace) -> None:
    """Otherwise the child could wait for a lock of torch's allocator for ever."""
    stage, begun, goes_on = Stage(place), threading.Event(), threading.Event()
    steps: list[str] = []

    def step() -> None:
        steps.append("begun")
        begun.set()
        assert goes_on.wait(20)
        time.sleep(0.05)
        steps.append("ended")

    tasks = [stage.submit(step) for _ in range(2)]
    assert begun.wait(20)
    goes_on.set()
    assert in_a_fork(lambda: steps.count("begun") == steps.count("ended")) == 0
    assert [task.wait(20) for task in tasks] == [True, True]


def test_a_fork_waits_only_once_for_a_step_that_hangs(
    place: FakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, begun, goes_on = Stage(place), threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        goes_on.wait()

    task = stage.submit(hang)
    assert begun.wait(20)
    for longest in (0.05, 10**6):
        monkeypatch.setattr(forks, "LONGEST_WAIT", longest)
        assert in_a_fork(lambda: True) == 0
    goes_on.set()
    assert task.wait(20)


def test_decoded_batches_in_memory_are_bounded(place: FakePlace) -> None:
    """One batch is decoded and one augmented, also after failed steps."""
    stage, lock = Stage(place), threading.Lock()
    decoded: set[int] = set()
    most = [0]

    def begin(number: int) -> int:
        if number % 3 == 0:
            raise KeyError(number)
        with lock:
            decoded.add(number)
            most[0] = max(most[0], len(decoded))
        return number

    def end(number: int) -> int:
        with lock:
            decoded.remove(number)
        return number

    tasks = [stage.submit(partial(begin, number), end) for number in range(60)]
    for number, task in enumerate(tasks):
        assert task.wait(seconds(2))
        if number % 3:
            assert task.take(place) == number
    assert 0 < most[0] <= 2
