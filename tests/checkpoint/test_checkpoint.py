"""Checkpoint: objects under names; their states collected, restored and set by hand."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from stateful_gpu_loader import RNG
from stateful_gpu_loader.checkpoint import Checkpoint
from stateful_gpu_loader.errors import CheckpointError
from tests.checkpoint.counters import Counter, OtherCounter, Text, collected


def held(**counts: int) -> Checkpoint:
    """Return a new checkpoint that has loaded counters of these names."""
    checkpoint = Checkpoint()
    checkpoint.deserialize(collected(**counts).serialize())
    return checkpoint


def test_new_checkpoint_is_empty() -> None:
    checkpoint = Checkpoint()
    assert (len(checkpoint), checkpoint.names) == (0, ())
    assert not checkpoint.is_complete
    assert not checkpoint.is_loaded
    assert "counter" not in checkpoint
    assert repr(checkpoint) == "<Checkpoint of [], no states>"
    with pytest.raises(CheckpointError, match="nothing is registered"):
        checkpoint.collect()


def test_loaded_state_is_applied_at_registration() -> None:
    checkpoint = held(a=3, b=4)
    assert checkpoint.is_loaded
    assert not checkpoint.is_complete
    a, b = Counter(), Counter()
    assert checkpoint.register(b, "b") == "b"
    assert (a.count, b.count) == (0, 4)
    checkpoint.register(a, "a")
    assert (a.count, b.count) == (3, 4)
    assert checkpoint.names == ("b", "a")
    assert len(checkpoint) == 2
    assert "a" in checkpoint
    assert repr(checkpoint) == "<Checkpoint of ['b', 'a'], 2 states loaded>"


def test_loading_into_registered_objects_waits_for_restore_or_another_registration() -> None:
    """DALI's Checkpoint waits for restore, too, but its collect would lose the state."""
    checkpoint, counter = Checkpoint(), Counter(1)
    checkpoint.register(counter, "a")
    for act in (checkpoint.restore, lambda: checkpoint.register(counter)):
        counter.count = 1
        checkpoint.deserialize(collected(a=5).serialize())
        with pytest.raises(CheckpointError, match=r"\['a'\]"):
            checkpoint.collect()
        assert counter.count == 1
        act()
        assert counter.count == 5
    counter.count = 6
    checkpoint.register(counter, "a")
    assert counter.count == 6, "a state is applied once"
    checkpoint.collect()
    assert checkpoint.get_state("a")["count"] == 6


def test_restore_goes_back_to_what_was_collected() -> None:
    counter, rng = Counter(7), RNG(42)
    checkpoint = Checkpoint()
    checkpoint.register(counter, "a")
    checkpoint.register(rng, "rng")
    checkpoint.collect()
    assert checkpoint.is_complete
    assert not checkpoint.is_loaded
    drawn = rng.uniform()
    for _ in range(2):
        counter.count = 0
        checkpoint.restore()
        assert (counter.count, rng.uniform()) == (7, drawn)


def test_states_are_copies_on_both_sides() -> None:
    """Later changes of the object or of the passed state do not reach the checkpoint."""
    counter = Counter(1)
    module = torch.nn.Linear(2, 2)
    before = module.weight.detach().clone()
    checkpoint = Checkpoint()
    checkpoint.register(counter, "a")
    checkpoint.register(module, "module")
    checkpoint.collect()
    text = checkpoint.serialize()
    counter.history.append(2)
    with torch.no_grad():
        module.weight += 1
    checkpoint.get_state("a")["history"].append(3)
    checkpoint.get_state("module")["weight"].zero_()
    for _ in range(2):
        checkpoint.restore()
        assert counter.history == [1]
        assert torch.equal(module.weight, before)
        counter.history.append(4)
        with torch.no_grad():
            module.weight.zero_()
    restored = Checkpoint()
    restored.deserialize(text)
    assert torch.equal(restored.get_state("module")["weight"], before)
    given = {"count": 1, "history": [1]}
    restored.set_state("a", given)
    given["count"] = 2
    assert restored.get_state("a")["count"] == 1


def test_automatic_names_number_the_registrations() -> None:
    """Named objects in between do not shift them."""
    first = Checkpoint()
    counters = [Counter(n) for n in range(3)]
    names = [first.register(counters[0]), first.register(Text("t"), "text")]
    names += [first.register(counter) for counter in counters[1:]]
    assert names == ["__object_0", "text", "__object_1", "__object_2"]
    assert first.register(counters[1]) == "__object_1"
    first.collect()
    second = Checkpoint()
    second.deserialize(first.serialize())
    restored = [Counter() for _ in range(3)]
    for counter in restored:
        second.register(counter)
    assert [counter.count for counter in restored] == [0, 1, 2]
    second.register(Text(), "text")
    second.restore()


def test_names_and_objects_are_one_to_one() -> None:
    """Objects are compared by identity, not by ``==``."""

    class Equal(Counter):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    checkpoint, counter = Checkpoint(), Equal()
    checkpoint.register(counter, "a")
    with pytest.raises(CheckpointError, match=r"'b' .*Equal.*'a'"):
        checkpoint.register(counter, "b")
    for other in (OtherCounter(), Equal()):
        with pytest.raises(CheckpointError, match=rf"'a'.*Equal.*{type(other).__name__}"):
            checkpoint.register(other, "a")
    assert checkpoint.names == ("a",)
    assert checkpoint.register(counter, "a") == checkpoint.register(counter) == "a"
    assert checkpoint.register(Equal()) == "__object_0"


def test_invalid_name_is_refused() -> None:
    checkpoint = Checkpoint()
    for name in ("", 7, b"a", "\ud800", "__object_0", "__object_x"):
        with pytest.raises(CheckpointError, match=r"name ="):
            checkpoint.register(Counter(), name)  # type: ignore[arg-type]
    assert len(checkpoint) == 0


def test_registration_after_collection_is_too_late() -> None:
    checkpoint = collected(a=1)
    for name in (None, "b"):
        with pytest.raises(CheckpointError, match=r"(?s)\['a'\].*clear\(\)"):
            checkpoint.register(Text(), name)
    assert checkpoint.names == ("a",)
    checkpoint.clear()
    checkpoint.register(Text(), "b")


def test_object_without_a_loaded_state_is_refused() -> None:
    checkpoint = held(a=1)
    for name in (None, "b"):
        with pytest.raises(CheckpointError, match=r"'(b|__object_0)'.*\['a'\]"):
            checkpoint.register(Counter(), name)
    checkpoint.set_state("b", {"count": 9, "history": []})
    counter = Counter()
    checkpoint.register(counter, "b")
    assert counter.count == 9


def test_state_of_another_type_is_refused_with_both_types() -> None:
    """Neither the object nor the checkpoint is changed."""
    checkpoint, other = held(a=1), OtherCounter(5)
    types = r"tests\.checkpoint\.counters\.Counter, .*tests\.checkpoint\.counters\.OtherCounter\."
    with pytest.raises(CheckpointError, match=types):
        checkpoint.register(other, "a")
    assert other.count == 5
    assert checkpoint.names == ()
    counter = Counter()
    checkpoint.register(counter, "a")
    assert counter.count == 1
    checkpoint.clear()
    checkpoint.register(other, "a")
    checkpoint.deserialize(collected(a=1).serialize())
    with pytest.raises(CheckpointError, match=types):
        checkpoint.restore()
    assert other.count == 5


def test_get_state_of_an_unknown_name_lists_the_names() -> None:
    checkpoint = Checkpoint()
    with pytest.raises(CheckpointError, match="'a'"):
        checkpoint.get_state("a")
    checkpoint.register(Counter(1), "a")
    with pytest.raises(CheckpointError, match=r"'a'.*\['a'\]"):
        checkpoint.get_state("a")
    checkpoint.collect()
    with pytest.raises(CheckpointError, match=r"'b'.*\['a'\]"):
        checkpoint.get_state("b")
    assert held(c=3).get_state("c")["count"] == 3, "before its object is registered"


def test_collecting_over_a_state_without_object_is_an_error() -> None:
    checkpoint = held(a=1, b=2)
    checkpoint.register(Counter(), "a")
    for act in (checkpoint.collect, checkpoint.restore):
        with pytest.raises(CheckpointError, match=r"\['b'\].*\['a'\]"):
            act()
    assert checkpoint.get_state("b")["count"] == 2


def test_restoring_without_a_state_is_an_error() -> None:
    checkpoint = Checkpoint()
    checkpoint.register(Counter(), "a")
    with pytest.raises(CheckpointError, match=r"load\(\)"):
        checkpoint.restore()
    checkpoint.register(Counter(), "b")
    checkpoint.set_state("a", {"count": 5, "history": []})
    with pytest.raises(CheckpointError, match=r"\['b'\].*\['a'\]"):
        checkpoint.restore()


def test_object_that_does_not_give_its_state_leaves_the_collected_ones() -> None:
    class Silent(Counter):
        silent = False

        def state_dict(self) -> dict[str, Any]:
            if self.silent:
                raise RuntimeError("not now")
            return super().state_dict()

    checkpoint, counter, silent = Checkpoint(), Counter(1), Silent(2)
    checkpoint.register(counter, "a")
    checkpoint.register(silent, "b")
    checkpoint.collect()
    counter.count, silent.silent = 3, True
    with pytest.raises(CheckpointError, match=r"'b' \(.*Silent\).*RuntimeError"):
        checkpoint.collect()
    assert checkpoint.get_state("a")["count"] == 1


def test_state_without_a_form_is_refused_at_collection() -> None:
    checkpoint, counter = Checkpoint(), Counter()
    counter.history = [object()]  # type: ignore[list-item]
    checkpoint.register(counter, "a")
    with pytest.raises(CheckpointError, match=r"'a' .*history.*object"):
        checkpoint.collect()
    assert not checkpoint.is_complete


def test_damaged_text_changes_nothing() -> None:
    checkpoint = collected(a=1)
    text = checkpoint.serialize()
    for damaged in (text[:-5], text.replace("count", "counT"), "", "{}", b"\xff\xfe"):
        with pytest.raises(CheckpointError, match="Remedy: "):
            checkpoint.deserialize(damaged)
    assert checkpoint.is_complete
    assert checkpoint.get_state("a")["count"] == 1
    checkpoint.deserialize(text.encode())
    assert checkpoint.is_loaded


def test_clear_forgets_all_and_leaves_the_objects() -> None:
    checkpoint = collected(a=1)
    counter = Counter(4)
    checkpoint.clear()
    assert (checkpoint.names, checkpoint.is_complete, checkpoint.is_loaded) == ((), False, False)
    with pytest.raises(CheckpointError, match="no states"):
        checkpoint.serialize()
    assert checkpoint.register(counter) == "__object_0"
    assert counter.count == 4


@pytest.mark.parametrize("given", [Counter, "tests.checkpoint.counters.Counter", None])
def test_type_of_a_state_that_is_set_is_checked(given: type | str | None) -> None:
    checkpoint, other = Checkpoint(), OtherCounter()
    checkpoint.set_state("a", {"count": 1, "history": []}, given)
    if given is None:
        checkpoint.register(other, "a")
        assert other.count == 1
        return
    with pytest.raises(CheckpointError, match="OtherCounter"):
        checkpoint.register(other, "a")
    checkpoint.register(Counter(), "a")


def test_set_state_refuses_states_that_no_object_can_have() -> None:
    checkpoint = collected(a=1)
    with pytest.raises(CheckpointError, match=r"'b'.*\['a'\]"):
        checkpoint.set_state("b", {})
    with pytest.raises(CheckpointError, match="object_type = 3"):
        checkpoint.set_state("a", {}, 3)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"'a' .*object"):
        checkpoint.set_state("a", {"x": object()})
    with pytest.raises(CheckpointError, match="not a valid name"):
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


def of_another_thread() -> Checkpoint:
    found: list[Checkpoint] = []
    thread = threading.Thread(target=lambda: found.append(Checkpoint.current()))
    thread.start()
    thread.join()
    return found[0]


def test_a_thread_keeps_one_checkpoint() -> None:
    """Code without an explicit checkpoint registers in the one that its caller collects."""
    mine = Checkpoint.current()
    assert Checkpoint.current() is mine
    others = of_another_thread(), of_another_thread()
    assert mine not in others
    assert others[0] is not others[1]


def test_a_block_makes_a_checkpoint_the_current_one() -> None:
    """DALI's EvalContext does the same: the innermost block counts, in its own thread alone."""
    before = Checkpoint.current()
    with Checkpoint() as outer:
        assert Checkpoint.current() is outer
        with outer, Checkpoint() as inner:
            assert Checkpoint.current() is inner
            assert of_another_thread() not in (outer, inner, before)
        assert Checkpoint.current() is outer
        with pytest.raises(KeyError), Checkpoint():
            raise KeyError
        assert Checkpoint.current() is outer
    assert Checkpoint.current() is before
