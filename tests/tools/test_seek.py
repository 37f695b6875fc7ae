"""A state alone is moved to any place of its stream, or refused."""

from __future__ import annotations

import pytest

from stateful_gpu_loader import NoSuchPlace, StateMismatch
from stateful_gpu_loader.tools.seek import state_at
from tests.conformance import through_json, uninterrupted
from tests.stream_kinds import KINDS


@pytest.mark.parametrize("name", ["order", "one of three ranks, drop_last", "calls"])
def test_a_moved_state_is_the_one_of_an_uninterrupted_run(name: str) -> None:
    """The rule is that of ``loader.seek``, which is tested with all kinds of streams."""
    _, states = uninterrupted(KINDS[name](), 2)
    middle = through_json(states[0, 1])
    for state in states.values():
        place = {"epoch": state["epoch"], "position": state["position"]}
        assert state_at(middle, **place) == state
        assert state_at(states[1, 1], **place) == state


@pytest.mark.parametrize("name", ["dataset with state", "epochs of several lengths"])
def test_other_streams_are_refused(name: str) -> None:
    loader = KINDS[name]()
    next(iter(loader))
    with pytest.raises(NoSuchPlace):
        state_at(loader.state_dict(), epoch=1, position=4)


def test_batches_delivered_out_of_order_are_discarded() -> None:
    state = KINDS["order"]().state_dict() | {"position": 4, "ahead": "[8, 16]"}
    assert state_at(state, epoch=0, position=8)["ahead"] is None
    assert state["ahead"] == "[8, 16]"


def test_the_record_of_bad_samples_is_kept() -> None:
    text = '{"total": 1, "samples": [[3, 7, 0, "ValueError: no label", true]]}'
    state = KINDS["order"]().state_dict() | {"bad_samples": text}
    assert state_at(state, epoch=4, samples=0)["bad_samples"] == text


def test_values_that_are_not_states_are_refused() -> None:
    with pytest.raises(StateMismatch) as caught:
        state_at({"_snapshot": {}}, epoch=0, position=0)
    assert caught.value.field == "format"
