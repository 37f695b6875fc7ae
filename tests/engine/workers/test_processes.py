"""The process pipeline while all workers live: order, routing, starts, failures."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader.engine.pipeline import Failure
from stateful_gpu_loader.errors import BadSample
from tests.conformance import same
from tests.engine.workers import fakes
from tests.engine.workers.fakes import Doing, Gate, answers, request, requests


def test_answers_come_in_order_and_a_second_pass_follows(make: Any) -> None:
    pipeline = make()
    for _ in range(2):
        pipeline.start(requests(*[fakes.returning(i) for i in range(9)]))
        assert answers(pipeline) == list(range(9))
        with pytest.raises(StopIteration):
            next(pipeline)


@pytest.mark.processes
@pytest.mark.parametrize("name", ["fork", "forkserver"])
def test_a_context_object_does_as_well(make: Any, name: str) -> None:
    context = torch.multiprocessing.get_context(name)
    pipeline = make(multiprocessing_context=context, num_workers=1)
    pipeline.start(requests(fakes.users_dataset))
    assert type(pipeline.workers[0]).__name__.lower() == f"{name}process"
    assert answers(pipeline) == ["the user's dataset"]


def test_batches_arrive_untouched(make: Any) -> None:
    """torch's own collate functions would turn tuples into lists and arrays into tensors."""
    pipeline = make()
    batches = [(1, 2.0), np.arange(3), "text", None, {"a": (1,)}, fakes.large(), fakes.shared()]
    pipeline.start(requests(*[fakes.returning(batch) for batch in batches]))
    assert same(answers(pipeline), batches)


@pytest.mark.parametrize("persistent", [True, False])
def test_the_processes_are_known_when_the_pass_has_ended(make: Any, persistent: bool) -> None:
    """Programs look them up on the iterator, as with torch's."""
    pipeline = make(persistent_workers=persistent)
    pipeline.start(requests(*[os.getpid] * 4))
    found = answers(pipeline)
    assert [process.pid for process in pipeline.workers] == found[:2] == found[2:]


def test_out_of_order_a_slow_worker_delays_no_other(make: Any, gate: Gate) -> None:
    pipeline = make(in_order=False)
    actions = [gate.action, *[fakes.returning(i) for i in range(10)]]
    pipeline.start(requests(*actions))
    gate.reached()
    # One of them is queued at the worker that waits at the gate.
    early = [next(pipeline) for _ in range(9)]
    gate.open()
    late = [next(pipeline) for _ in range(2)]
    with pytest.raises(StopIteration):
        next(pipeline)
    assert late[0][1] == "gate"
    found = {request.ordinal: answer for request, answer in early + late}
    assert [found[ordinal] for ordinal in range(11)] == ["gate", *range(10)]


@pytest.mark.parametrize("in_order", [True, False])
def test_a_request_is_served_by_the_worker_it_names(make: Any, in_order: bool) -> None:
    pipeline = make(num_workers=3, in_order=in_order)
    wanted = [2, 2, 2, 2, 2, 2, 2, 0, 1, 1, 0, 2]
    pipeline.start(
        iter([request(i, fakes.worker_number, worker=worker) for i, worker in enumerate(wanted)])
    )
    found = [next(pipeline) for _ in wanted]
    assert all(request.worker == worker for request, worker in found)
    assert sorted(request.ordinal for request, _ in found) == list(range(len(wanted)))


@pytest.mark.parametrize("persistent", [True, False])
def test_each_worker_begins_once_a_pass_and_its_state_comes_back(
    make: Any, persistent: bool
) -> None:
    pipeline = make(persistent_workers=persistent)
    for passes in range(2):
        pipeline.start(requests(*[fakes.nothing] * 4, snapshot=True), fakes.starts(2))
        found = answers(pipeline)
        assert [answer.worker for answer in found] == [0, 1, 0, 1]
        last = [answer.snapshot.decode() for answer in found[2:]]
        once = ["begin 0, request 0, request 2", "begin 1, request 1, request 3"]
        repeated = passes + 1 if persistent else 1
        assert last == [", ".join([text] * repeated) for text in once]


def test_a_beginning_that_fails_is_tried_again_with_the_next_request(make: Any) -> None:
    pipeline = make(Doing(refusing=1), num_workers=1)
    pipeline.start(requests(*[fakes.nothing] * 2, snapshot=True), fakes.starts(1))
    failed, answer = answers(pipeline)
    with pytest.raises(OSError, match=r"cannot begin"):
        failed.reraise()
    assert answer.snapshot == b"begin 0, request 1"


def test_an_exception_keeps_its_type_and_the_others_continue(make: Any) -> None:
    """The worker's state comes back with it, also if the batch cannot be sent."""
    pipeline = make()
    actions = (fakes.nothing, fakes.failing, fakes.unpicklable)
    pipeline.start(requests(*actions, snapshot=True))
    one, failed, unsent = answers(pipeline)
    assert one.payload == 0
    assert (failed.snapshot, unsent.snapshot) == (b"request 1", b"request 0, request 2")
    assert isinstance(unsent.payload, Failure)
    with pytest.raises(KeyError, match=r"(?s)in DataLoader worker process 1.*no such sample"):
        failed.payload.reraise()


def bad_sample() -> None:
    raise BadSample("a.jpg", index=3, position=4, epoch=0, reason="truncated")


@pytest.mark.parametrize(
    ("action", "kind", "match"),
    [
        (fakes.failing_with_a_local_type, ValueError, r"(?s)LocalError.*Traceback.*seven"),
        (fakes.unpicklable, TypeError, r"(?s)type dict was sent.*cannot pickle '_thread.lock'"),
        (bad_sample, BadSample, r"a\.jpg"),
    ],
)
def test_an_unsendable_batch_fails_in_its_place(
    make: Any, action: Callable[[], Any], kind: type[Exception], match: str
) -> None:
    """torch's DataLoader would wait for it forever."""
    pipeline = make()
    pipeline.start(requests(fakes.nothing, action, fakes.nothing))
    one, failed, other = answers(pipeline)
    assert (one, other) == (0, 0)
    with pytest.raises(kind, match=match):
        failed.reraise()


def test_a_request_that_cannot_be_sent_fails_in_its_place(make: Any) -> None:
    pipeline = make(num_workers=1)
    pipeline.start(requests(lambda: 1, fakes.nothing, snapshot=True), fakes.starts(1))
    failed, answer = answers(pipeline)
    with pytest.raises(Exception, match="lambda"):
        failed.reraise()
    assert answer.snapshot == b"begin 0, request 1"


class Unreadable:
    """Raises when it is unpickled."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise LookupError("not here")


def test_a_batch_that_cannot_be_received_fails_in_its_place(make: Any) -> None:
    pipeline = make()
    pipeline.start(requests(fakes.nothing, Unreadable, fakes.nothing))
    one, failed, other = answers(pipeline)
    assert (one, other) == (0, 0)
    with pytest.raises(LookupError, match="not here"):
        failed.reraise()


def refuse_to_work(worker: int) -> None:
    raise ZeroDivisionError(f"worker {worker}")


def test_an_exception_of_worker_init_fn_is_that_of_every_request(make: Any) -> None:
    pipeline = make(initialise=refuse_to_work)
    pipeline.start(requests(*[fakes.nothing] * 3))
    for number, failed in zip([0, 1, 0], answers(pipeline), strict=True):
        with pytest.raises(ZeroDivisionError, match=f"worker {number}"):
            failed.reraise()


def test_a_datapipe_is_divided_among_the_workers() -> None:
    """The division is torch's, with or without a worker_init_fn."""
    datapipe = IterableWrapper(range(7)).sharding_filter()
    for initialise in (None, fakes.returning):
        given: Any = {"batch_size": 2, "num_workers": 3, "worker_init_fn": initialise}
        found = [batch.tolist() for batch in StatefulGPULoader(datapipe, **given)]
        assert found == [[0, 3], [1, 4], [2, 5], [6]]
        assert found == [batch.tolist() for batch in DataLoader(datapipe, **given)]


@pytest.mark.parametrize("in_order", [True, False])
def test_an_exception_of_the_requests_waits_for_its_turn(make: Any, in_order: bool) -> None:
    pipeline = make(in_order=in_order)
    pipeline.start(fakes.FailingOnce(OSError("the order is out of reach")))
    assert sorted(next(pipeline)[1] for _ in range(2)) == [0, 1]
    with pytest.raises(OSError, match="out of reach"):
        next(pipeline)
    assert sorted(answers(pipeline)) == [2, 3]


def test_an_interrupt_of_the_requests_loses_nothing(make: Any) -> None:
    pipeline = make(num_workers=1, prefetch_factor=1)
    pipeline.start(fakes.FailingOnce(KeyboardInterrupt()))
    assert next(pipeline)[1] == 0
    with pytest.raises(KeyboardInterrupt):
        next(pipeline)
    assert answers(pipeline) == [1, 2, 3]


@pytest.mark.parametrize("persistent", [True, False])
def test_answers_of_an_abandoned_pass_are_not_delivered(
    make: Any, gate: Gate, persistent: bool
) -> None:
    pipeline = make(persistent_workers=persistent)
    pipeline.start(requests(fakes.nothing, fakes.nothing, gate.action, *[fakes.nothing] * 9))
    assert next(pipeline)[1] == 0
    gate.reached()
    before = [worker.pid for worker in pipeline.workers]
    gate.open()
    pipeline.start(requests(*[fakes.returning(i) for i in range(10, 16)]))
    assert ([worker.pid for worker in pipeline.workers] == before) == persistent
    assert answers(pipeline) == list(range(10, 16))


def test_a_worker_makes_nothing_more_of_an_abandoned_pass(make: Any, gate: Gate) -> None:
    pipeline = make(num_workers=1, persistent_workers=True)
    pipeline.start(requests(gate.action, fakes.nothing))
    gate.reached()
    pipeline.start(iter([fakes.request(9, fakes.nothing, snapshot=True)]))
    gate.open()
    (answer,) = answers(pipeline)
    assert answer.snapshot == b"request 0, request 9"


def test_a_worker_makes_nothing_more_once_its_connection_has_ended(
    make: Any, gate: Gate, tmp_path: Path
) -> None:
    made = tmp_path / "made"
    pipeline = make(num_workers=1)
    pipeline.start(requests(gate.action, partial(Path.touch, made)))
    gate.reached()
    (worker,) = pipeline._dispatch._cluster._workers.values()
    worker.channel.end()
    gate.open()
    worker.process.join()
    assert not made.exists()


def note_the_end(path: Path, worker: int) -> None:
    import multiprocessing.util

    multiprocessing.util.Finalize(None, (path / str(worker)).touch, exitpriority=1)


@pytest.mark.processes
@pytest.mark.parametrize("finished", [True, False])
def test_the_users_cleanup_runs_in_every_worker(make: Any, tmp_path: Path, finished: bool) -> None:
    pipeline = make(initialise=partial(note_the_end, tmp_path))
    pipeline.start(requests(*[fakes.nothing] * 8))
    next(pipeline)
    if finished:
        answers(pipeline)
    else:
        pipeline.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]
