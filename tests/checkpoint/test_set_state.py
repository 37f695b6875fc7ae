"""States that are set by hand: their types, and what they make of those collected (E1)."""

from __future__ import annotations

import pytest

from stateful_gpu_loader.checkpoint import Checkpoint
from stateful_gpu_loader.errors import CheckpointError
from tests.checkpoint.counters import Counter, OtherCounter, collected


@pytest.mark.parametrize("given", [Counter, "tests.checkpoint.counters.Counter"])
def test_type_of_a_state_that_is_set_is_checked(given: type | str) -> None:
    checkpoint = Checkpoint()
    checkpoint.set_state("a", {"count": 1, "history": []}, given)
    with pytest.raises(CheckpointError, match="OtherCounter"):
        checkpoint.register(OtherCounter(), "a")
    checkpoint.register(Counter(), "a")


def test_state_that_is_set_without_a_type_fits_any() -> None:
    checkpoint, other = Checkpoint(), OtherCounter()
    checkpoint.register(other, "a")
    checkpoint.set_state("a", {"count": 1, "history": []})
    checkpoint.restore()
    assert other.count == 1


def test_set_state_refuses_what_no_object_can_have() -> None:
    checkpoint = collected(a=1)
    with pytest.raises(CheckpointError, match=r"no object is registered as 'b'.*\['a'\]"):
        checkpoint.set_state("b", {})
    with pytest.raises(CheckpointError, match="object_type = 3 is no class"):
        checkpoint.set_state("a", {}, 3)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"'a' cannot be saved: .*object.*Remedy: "):
        checkpoint.set_state("a", {"x": object()})
    with pytest.raises(CheckpointError, match="no name"):
        checkpoint.set_state("", {})
    assert checkpoint.get_state("a")["count"] == 1


def test_states_are_not_those_collected_once_one_is_set() -> None:
    checkpoint = collected(a=1)
    assert checkpoint.is_complete
    checkpoint.set_state("a", {"count": 2, "history": []})
    assert not checkpoint.is_complete
    assert repr(checkpoint) == "<Checkpoint of ['a'], 1 states set>"
    with pytest.raises(CheckpointError, match="comes too late"):
        checkpoint.register(OtherCounter(), "b")
    checkpoint.restore()
    assert not checkpoint.is_complete
    checkpoint.collect()
    assert checkpoint.is_complete
    assert checkpoint.get_state("a")["count"] == 2
