"""DevicePrefetch works ahead of the user, in order, and loses nothing."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from stateful_gpu_loader.engine.device.device_prefetch import DevicePrefetch
from stateful_gpu_loader.engine.device.stage import Stage
from stateful_gpu_loader.engine.pipeline import NOTHING, Answer, Failure, WorkersDied
from stateful_gpu_loader.records import WorkerStart
from stateful_gpu_loader.state.bad_samples import FoundBad
from tests.fake_gpu import FakePlace
from tests.patience import seconds


class Scripted:
    """A pipeline with given answers. An exception among them is raised in its turn."""

    def __init__(self, answers: Sequence[Any], *, ready: bool = True) -> None:
        self.answers = list(answers)
        self.ready = ready
        self.asked = 0
        self.closed = 0
        self.place: FakePlace | None = None
        self.was_open: bool | None = None
        self.is_whole = False

    def start(
        self,
        requests: Iterator[Any],
        starts: Sequence[WorkerStart] | None = None,
    ) -> None:
        self.was_open = self.place is not None and self.place.is_open

    def __next__(self) -> tuple[Any, Any]:
        self.asked += 1
        if not self.answers:
            raise StopIteration
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return f"request {self.asked}", answer

    def is_ready(self) -> bool:
        return self.ready

    def close(self) -> None:
        self.closed += 1


def pipeline(
    inner: Scripted, finish: Any = None, *, ahead: int = 2, timeout: float = 0, forks: bool = False
) -> DevicePrefetch:
    inner.place = place = FakePlace()
    made = DevicePrefetch(
        inner,
        stage=Stage(place),
        finish=finish or (lambda payload: payload * 10),
        ahead=ahead,
        timeout=timeout,
        forks=forks,
    )
    made.start(iter(()))
    return made


def rest(pipeline: DevicePrefetch) -> list[Any]:
    found = []
    while True:
        try:
            found.append(next(pipeline)[1])
        except StopIteration:
            return found


@pytest.mark.parametrize("ahead", [1, 3, 9])
@pytest.mark.parametrize("ready", [True, False])
def test_batches_come_in_order_whatever_is_ready(ahead: int, ready: bool) -> None:
    inner = Scripted([torch.tensor(i) for i in range(7)], ready=ready)
    device = pipeline(inner, ahead=ahead)
    assert [int(batch) for batch in rest(device)] == [i * 10 for i in range(7)]


@pytest.mark.parametrize("ahead", [1, 3])
def test_no_more_than_the_limit_is_taken_over(ahead: int) -> None:
    inner = Scripted([torch.tensor(i) for i in range(20)])
    device = pipeline(inner, ahead=ahead)
    for delivered in range(1, 10):
        next(device)
        assert inner.asked == delivered + ahead


def test_an_unready_batch_is_not_awaited_while_another_is_in_progress() -> None:
    inner = Scripted([torch.tensor(1), torch.tensor(2)], ready=False)
    device = pipeline(inner, ahead=4)
    next(device)
    assert inner.asked == 1
    next(device)
    assert inner.asked == 2


def test_the_next_batches_are_made_while_the_user_works() -> None:
    made = [threading.Event() for _ in range(3)]

    def finish(number: torch.Tensor) -> torch.Tensor:
        made[int(number)].set()
        return number

    device = pipeline(Scripted([torch.tensor(i) for i in range(3)]), finish, ahead=3)
    next(device)
    assert made[1].wait(20)
    assert made[2].wait(20)


def test_exceptions_keep_their_turn_and_the_inner_pipeline_is_asked_again() -> None:
    """Earlier batches are delivered first; after the exception the stream continues."""
    inner = Scripted(
        [torch.tensor(1), torch.tensor(2), KeyError("order"), torch.tensor(3), WorkersDied("x", 1)]
    )
    device = pipeline(inner, ahead=4)
    assert [int(next(device)[1]) for _ in range(2)] == [10, 20]
    with pytest.raises(KeyError, match="order"):
        next(device)
    assert int(next(device)[1]) == 30
    with pytest.raises(WorkersDied):
        next(device)


def test_failures_and_ends_of_workers_pass_untouched_and_in_turn() -> None:
    failure = Failure(ValueError("bytes"))
    end = Answer(NOTHING, worker=1, snapshot=b"state")
    device = pipeline(Scripted([torch.tensor(1), failure, end, Answer(failure, worker=2)]), ahead=4)
    first, second, third, fourth = rest(device)
    assert (int(first), second, third) == (10, failure, end)
    assert (fourth.payload, fourth.worker) == (failure, 2)


def test_reports_of_a_worker_and_of_the_stage_are_kept() -> None:
    bad = [FoundBad(index, index, 0, "reason", True) for index in (1, 2)]
    inner = Scripted([Answer(torch.tensor(1), worker=3, snapshot=b"state", bad=(bad[0],))])
    device = pipeline(inner, lambda payload: Answer(payload + 1, bad=(bad[1],)))
    (answer,) = rest(device)
    assert (int(answer.payload), answer.worker, answer.snapshot) == (2, 3, b"state")
    assert answer.bad == tuple(bad)
    inner = Scripted([Answer(torch.tensor(1), worker=3, snapshot=b"state")])
    (answer,) = rest(pipeline(inner, lambda payload: payload + 1))
    assert (int(answer.payload), answer.worker, answer.snapshot) == (2, 3, b"state")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("nvJPEG: out of memory"),
    ],
)
def test_full_memory_is_reported_with_sizes_and_the_batch_is_tried_again(error: Exception) -> None:
    errors = [error] * 4  # tried twice before the user gets the error

    def finish(batch: torch.Tensor) -> torch.Tensor:
        if errors and batch[0] == 1:
            raise errors.pop()
        return batch

    inner = Scripted([torch.full((1 << 18,), i, dtype=torch.float32) for i in range(4)])
    device = pipeline(inner, finish, ahead=3)
    assert next(device)[1][0] == 0
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError, match=r"1\.0 MiB .* [123] ") as caught:
            next(device)
        assert caught.value.__cause__ is error
    assert inner.place is not None
    assert inner.place.times_freed == 4
    assert [float(batch[0]) for batch in rest(device)] == [1, 2, 3]


def test_a_stage_that_hangs_is_given_up_after_the_timeout() -> None:
    """Like a worker that hangs."""
    go_on = threading.Event()

    def hang(payload: Any) -> Any:
        assert payload == 0 or go_on.wait(seconds(2))
        return payload

    device = pipeline(Scripted([torch.tensor(0), torch.tensor(1)]), hang, timeout=0.05)
    next(device)
    with pytest.raises(WorkersDied):
        next(device)
    device.close()
    go_on.set()


def test_the_first_batch_may_take_longer_than_the_timeout() -> None:
    """Meanwhile its decoder starts and its kernels are compiled."""
    timeouts: list[float] = []
    device = pipeline(Scripted([torch.tensor(i) for i in range(3)]), ahead=1, timeout=seconds(2))
    submit = device._stage.submit

    def submitted(*steps: Any) -> Any:
        task = submit(*steps)
        wait = task.wait
        task.wait = lambda timeout: timeouts.append(timeout) or wait(timeout)
        return task

    device._stage.submit = submitted  # type: ignore[method-assign]
    assert [int(batch) for batch in rest(device)] == [0, 10, 20]
    assert timeouts == [0, seconds(2), seconds(2)]


def test_an_interrupt_while_a_batch_is_taken_over_leaves_something_half_done() -> None:
    class Graph:
        def to(self, device: torch.device) -> str:
            raise KeyboardInterrupt

    device = pipeline(Scripted([Graph()]), lambda payload: payload)
    with pytest.raises(KeyboardInterrupt):
        next(device)
    assert not device.is_whole


@pytest.mark.parametrize("inner_is_whole", [True, False])
def test_an_interrupt_of_the_inner_pipeline_keeps_its_is_whole(inner_is_whole: bool) -> None:
    inner = Scripted([KeyboardInterrupt(), *map(torch.tensor, range(2))])
    inner.is_whole = inner_is_whole
    device = pipeline(inner)
    with pytest.raises(KeyboardInterrupt):
        next(device)
    assert device.is_whole == inner_is_whole
    inner.is_whole = True
    assert [int(batch) for batch in rest(device)] == [0, 10]
    assert device.is_whole, "at the end"


def test_an_interrupt_while_the_stage_is_waited_for_loses_nothing() -> None:
    device = pipeline(Scripted([torch.tensor(1)]))
    interrupts = [KeyboardInterrupt()]
    submit = device._stage.submit

    def submitted(*steps: Any) -> Any:
        task = submit(*steps)
        wait = task.wait

        def interrupted(timeout: float) -> bool:
            if interrupts:
                raise interrupts.pop()
            return bool(wait(timeout))

        task.wait = interrupted
        return task

    device._stage.submit = submitted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        next(device)
    assert device.is_whole
    assert [int(batch) for batch in rest(device)] == [10]


def test_full_memory_frees_the_unfinished_batch() -> None:
    held: list[Any] = []

    def finish(batch: torch.Tensor) -> torch.Tensor:
        part = torch.zeros(8)
        held.append(weakref.ref(part))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    device = pipeline(Scripted([torch.tensor(1)]), finish)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        next(device)
    assert caught.value.__cause__ is not None
    assert [part() for part in held] == [None, None]


def test_a_new_start_and_a_close_abandon_batches_in_flight() -> None:
    inner = Scripted([torch.tensor(i) for i in range(3)])
    device = pipeline(inner, ahead=3)
    next(device)
    inner.answers = [torch.tensor(7)]
    device.start(iter(()))
    assert [int(batch) for batch in rest(device)] == [70]
    device.close()
    assert inner.closed == 1
    inner.ready = False
    assert not device.is_ready()


@pytest.mark.parametrize("forks", [True, False])
def test_the_device_is_touched_after_workers_were_forked(forks: bool) -> None:
    """No process is forked after the device was first used."""
    inner = Scripted([])
    pipeline(inner, forks=forks)
    assert inner.was_open is not forks
    assert inner.place is not None
    assert inner.place.is_open
