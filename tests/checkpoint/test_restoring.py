"""States are restored into all objects or into none: nothing is lost or half changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from stateful_gpu_loader import RNG, ShuffledSampler, StatefulGPULoader
from stateful_gpu_loader.checkpoint import Checkpoint
from stateful_gpu_loader.errors import CheckpointError, StateMismatch
from tests.checkpoint.counters import Counter, OtherCounter, Text

BAD = {"count": -1, "history": ["half changed"]}
GOOD = {"count": 8, "history": [8]}


class Shy(Counter):
    """Has no state before it has begun."""

    def state_dict(self) -> dict[str, Any]:
        raise RuntimeError("not begun")


class Stubborn(Counter):
    """Takes one state and no other."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.count:
            raise RuntimeError("not twice")
        super().load_state_dict(state_dict)


class Interrupted(Counter):
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count = 99
        if state_dict["count"] == 8:
            raise KeyboardInterrupt
        super().load_state_dict(state_dict)


def with_states(states: dict[str, Any], objects: dict[str, Any]) -> Checkpoint:
    checkpoint = Checkpoint()
    for name, thing in objects.items():
        checkpoint.register(thing, name)
    for name, state in states.items():
        checkpoint.set_state(name, state)
    return checkpoint


def test_object_that_refuses_leaves_all_as_they_were() -> None:
    objects = {name: Counter(number) for number, name in enumerate("abcd", start=1)}
    checkpoint = with_states({**dict.fromkeys("abd", GOOD), "c": BAD}, objects)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.restore()
    assert [counter.count for counter in objects.values()] == [1, 2, 3, 4]
    assert [counter.history for counter in objects.values()] == [[1], [2], [3], [4]]
    text = str(caught.value)
    assert (
        "'c' (tests.checkpoint.counters.Counter) refused its state: ValueError: count = -1" in text
    )
    assert "['a', 'b'] had already been restored" in text
    assert "The former state is back in ['a', 'b', 'c']" in text
    assert "Remedy: register 'c' built as it was" in text
    assert isinstance(caught.value.__cause__, ValueError)
    checkpoint.set_state("c", GOOD)
    checkpoint.restore()
    assert [counter.count for counter in objects.values()] == [8] * 4


def test_everything_is_checked_before_anything_is_changed() -> None:
    class Watched(Counter):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            pytest.fail("changed before all was checked")

    checkpoint = with_states({"a": GOOD}, {"a": Watched(1), "b": OtherCounter(2)})
    checkpoint.set_state("b", GOOD, Counter)
    with pytest.raises(CheckpointError, match="OtherCounter"):
        checkpoint.restore()


def test_registration_that_fails_leaves_object_and_state() -> None:
    """The state is there for another object."""
    checkpoint, counter = with_states({"a": BAD}, {}), Counter(3)
    with pytest.raises(CheckpointError, match=r"(?s)'a' .*\['a'\]"):
        checkpoint.register(counter, "a")
    assert (counter.count, counter.history) == (3, [3])
    assert checkpoint.names == ()
    assert checkpoint.get_state("a") == BAD
    checkpoint.set_state("a", GOOD)
    checkpoint.register(counter, "a")
    assert counter.count == 8


def test_half_loaded_module_gets_its_weights_back() -> None:
    """torch copies the entries that fit before it refuses the rest."""
    checkpoint = with_states(
        {"net": {"0.weight": torch.full((2, 2), 7.0), "0.bias": torch.zeros(3)}}, {}
    )
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with pytest.raises(CheckpointError, match="size mismatch"):
        checkpoint.register(module, "net")
    assert all(torch.equal(before[name], now) for name, now in module.state_dict().items())


def test_interrupt_leaves_all_as_they_were_and_passes() -> None:
    objects = {"a": Counter(1), "b": Interrupted(2)}
    with pytest.raises(KeyboardInterrupt):
        with_states(dict.fromkeys("ab", GOOD), objects).restore()
    assert [counter.count for counter in objects.values()] == [1, 2]


def test_object_without_a_state_of_its_own_comes_last() -> None:
    """Other objects, which can be rolled back, may still refuse before it is changed."""
    objects = {"a": Shy(1), "b": Counter(2)}
    checkpoint = with_states({"a": GOOD, "b": BAD}, objects)
    with pytest.raises(CheckpointError, match=r"(?s)'b' .*\['b'\]"):
        checkpoint.restore()
    assert [counter.count for counter in objects.values()] == [1, 2]
    checkpoint.set_state("b", GOOD)
    checkpoint.restore()
    assert [counter.count for counter in objects.values()] == [8, 8]


def test_object_that_cannot_be_put_back_is_named() -> None:
    objects = {"a": Stubborn(0), "b": Counter(1), "c": Shy(2)}
    checkpoint = with_states({"a": GOOD, "b": GOOD, "c": BAD}, objects)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.restore()
    text = str(caught.value)
    assert "back in ['b']" in text
    assert "former state of ['a', 'c'] could not be restored. Remedy: build these again" in text
    assert objects["b"].count == 1


def test_mismatch_of_a_loader_is_named_and_changes_nothing() -> None:
    """The loader's own error is the cause."""

    def build(drop_last: bool) -> StatefulGPULoader[int]:
        return StatefulGPULoader([1, 2, 3, 4], batch_size=2, seed=1, drop_last=drop_last)

    saved, rng = Checkpoint(), RNG(1)
    saved.register(rng, "rng")
    saved.register(build(True), "train")
    saved.collect()
    text, drawn = saved.serialize(), rng.uniform()

    checkpoint = Checkpoint()
    checkpoint.deserialize(text)
    loader, rng = build(False), RNG(0)
    checkpoint.register(rng, "rng")
    with pytest.raises(CheckpointError, match=r"'train' .*drop_last") as caught:
        checkpoint.register(loader, "train")
    assert isinstance(caught.value.__cause__, StateMismatch)
    assert caught.value.__cause__.field == "drop_last"
    assert rng.uniform() == drawn

    checkpoint, rng = Checkpoint(), RNG(5)
    checkpoint.register(rng, "rng")
    checkpoint.register(loader, "train")
    checkpoint.deserialize(text)
    before = rng.get_state(), loader.state_dict()
    with pytest.raises(CheckpointError, match=r"(?s)'train'.*\['rng'\]"):
        checkpoint.restore()
    assert (rng.get_state(), loader.state_dict()) == before


def test_registration_of_torchdatas_loader_draws_from_no_generator() -> None:
    """To give its state it would start an iterator, which draws from the restored generator."""

    def build() -> tuple[torch.Generator, DataLoader[int]]:
        generator = torch.Generator().manual_seed(3)
        loader = StatefulDataLoader(list(range(8)), shuffle=True, generator=generator)
        return generator, loader

    generator, loader = build()
    batches = iter(loader)
    next(batches)
    saved = Checkpoint()
    saved.register(generator, "generator")
    saved.register(loader, "loader")
    saved.collect()
    text, state, expected = saved.serialize(), generator.get_state(), list(batches)

    generator, loader = build()
    checkpoint = Checkpoint()
    checkpoint.deserialize(text)
    checkpoint.register(generator, "generator")
    checkpoint.register(loader, "loader")
    assert torch.equal(generator.get_state(), state)
    assert list(loader) == expected


def numbers(seed: int) -> StatefulGPULoader[int]:
    return StatefulGPULoader(list(range(40)), batch_size=4, shuffle=True, seed=seed)


def test_iterators_continue_after_a_refusal_by_their_loader_or_by_another_object() -> None:
    """Otherwise the state would stand still, and the next pass would repeat batches.

    Loaders are put last, where no other object may still refuse.
    """
    loader, text, counter = numbers(1), Text("before"), Counter(3)
    batches = iter(loader)
    next(batches)
    checkpoint = with_states({"loader": numbers(2).state_dict()}, {})
    with pytest.raises(CheckpointError, match=r"seed") as caught:
        checkpoint.register(loader, "loader")
    assert "start new iterators" not in str(caught.value)
    next(batches)
    assert loader.state_dict()["position"] == 8

    checkpoint = with_states({"text": "after"}, {"loader": loader, "text": text})
    checkpoint.set_state("loader", numbers(2).state_dict())
    with pytest.raises(CheckpointError, match=r"(?s)\['text'\].*\['text'\]"):
        checkpoint.restore()
    assert text.text == "before"
    next(batches)
    assert loader.state_dict()["position"] == 12

    states = {"loader": loader.state_dict(), "counter": BAD}
    with pytest.raises(CheckpointError, match=r"'counter'") as caught:
        with_states(states, {"loader": loader, "counter": counter}).restore()
    assert "start new iterators" not in str(caught.value)
    next(batches)
    assert loader.state_dict()["position"] == 16


@pytest.mark.parametrize("last", [numbers, Shy])
def test_iterators_that_a_refusal_cut_off_are_named(last: Any) -> None:
    """The loader was restored before another object refused. A generator has no iterators."""
    one, other = numbers(1), last(2)
    next(iter(one))
    before = one.state_dict()
    objects = {"rng": RNG(1), "one": one, "other": other}
    states = {"rng": RNG(1).state_dict(), "one": numbers(1).state_dict()}
    bad = numbers(3).state_dict() if last is numbers else BAD
    with pytest.raises(CheckpointError, match=r"'other'") as caught:
        with_states({**states, "other": bad}, objects).restore()
    text = str(caught.value)
    assert "The former state is back in ['rng', 'one']" in text
    assert "Iterators of ['one'] in progress no longer move its state" in text
    assert "Remedy: start new iterators" in text
    assert one.state_dict() == before


def test_subclass_that_loads_in_its_own_way_gets_its_state_back() -> None:
    """Only this package's own methods are known to check everything first."""

    class Counted(ShuffledSampler):
        loads = 0

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            super().load_state_dict(state_dict)
            self.loads += 1
            if self.loads == 1:
                raise ValueError("too late")

    sampler = Counted(range(8), seed=3)
    state = {**sampler.state_dict(), "position": 5}
    with pytest.raises(CheckpointError, match=r"(?s)too late.*\['sampler'\]"):
        with_states({"sampler": state}, {}).register(sampler, "sampler")
    assert sampler.state_dict()["position"] == 0


def test_interrupt_of_what_checks_first_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal leaves it unchanged; an interrupt in the middle need not."""
    rng, original = RNG(1), RNG.set_state
    checkpoint = with_states({"rng": RNG(2).state_dict()}, {"rng": rng})

    def set_state(self: RNG, state: str) -> None:
        original(self, state)
        monkeypatch.setattr(RNG, "set_state", original)
        raise KeyboardInterrupt

    monkeypatch.setattr(RNG, "set_state", set_state)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.restore()
    assert rng.get_state() == RNG(1).get_state()
