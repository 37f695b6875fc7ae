"""Who makes what, and what an answer that could not be read leaves behind."""

from __future__ import annotations

import pytest

from stateful_gpu_loader.engine.pipeline import Answer, Failure
from stateful_gpu_loader.engine.workers.dispatch import Dispatch
from tests.engine.workers import fakes


@pytest.mark.parametrize("snapshot", [True, False])
def test_an_answer_that_could_not_be_read_tells_whose_state_is_lost(snapshot: bool) -> None:
    """The stream would take the worker's state before it for the one behind it."""
    two = iter([fakes.request(i, fakes.nothing, snapshot=snapshot) for i in range(2)])
    dispatch = Dispatch(two, None, num_workers=2, limit=2, in_order=True)
    dispatch.assign(7)
    dispatch.assign(8)
    failure = Failure(OSError("too many open files"))
    dispatch.answer(7, "batch")
    dispatch.answer(8, failure)
    assert dispatch.deliver()[1] == "batch"
    assert dispatch.deliver()[1] == (Answer(failure, worker=1) if snapshot else failure)
