"""The pipeline in the user's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from stateful_gpu_loader.engine.workers.inline import InlinePipeline
from tests.engine.workers import fakes
from tests.engine.workers.fakes import Doing, answers, request, requests, starts


def test_requests_are_answered_in_turn_and_not_ahead() -> None:
    asked = []

    def asking() -> Any:
        for i in range(3):
            asked.append(i)
            yield request(i, fakes.returning(i))

    pipeline = InlinePipeline(Doing())
    pipeline.start(asking())
    assert asked == []
    assert next(pipeline)[1] == 0
    assert asked == [0]
    assert answers(pipeline) == [1, 2]
    pipeline.close()
    assert answers(pipeline) == []


def test_it_begins_before_its_first_request_and_its_state_comes_back() -> None:
    pipeline = InlinePipeline(Doing())
    for _ in range(2):
        pipeline.start(requests(fakes.nothing, fakes.failing, snapshot=True), starts(1))
        one, failed = answers(pipeline)
    assert one.snapshot == b"begin 0, request 0, request 1, begin 0, request 0"
    assert failed.snapshot == one.snapshot + b", request 1"
    with pytest.raises(KeyError, match="no such sample"):
        failed.payload.reraise()


def test_a_beginning_that_fails_is_tried_again_with_the_next_request() -> None:
    pipeline = InlinePipeline(Doing(refusing=1))
    pipeline.start(requests(fakes.nothing, fakes.nothing, snapshot=True), starts(1))
    failed, answer = answers(pipeline)
    with pytest.raises(OSError, match="cannot begin"):
        failed.reraise()
    assert answer.snapshot == b"begin 0, request 1"


class Drawing(Doing):
    """Draws from the global generator at each call."""

    uses_global_generators = True

    def begin(self, start: Any) -> None:
        torch.rand(1)

    def __call__(self, request: Any, check: Callable[[], None]) -> Any:
        return torch.rand(1)


def test_the_callers_generators_are_put_back_after_a_beginning_too() -> None:
    """Nothing starts before the first batch, and state_dict() changes nothing."""
    pipeline = InlinePipeline(Drawing())
    pipeline.start(requests(fakes.nothing), starts(1))
    before = torch.get_rng_state()
    next(pipeline)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_exception_of_the_requests_is_raised_and_they_are_asked_again() -> None:
    class FailingOnce:
        failed = False

        def __next__(self) -> Any:
            if not self.failed:
                self.failed = True
                raise OSError("out of reach")
            return request(0, fakes.nothing)

    pipeline = InlinePipeline(Doing())
    asked: Any = FailingOnce()
    pipeline.start(asked)
    with pytest.raises(OSError, match="out of reach"):
        next(pipeline)
    assert next(pipeline)[1] == 0
