"""State as one string: equal to state_dict's, and refused as strictly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from stateful_gpu_loader import samplers
from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.randomness.rng import RNG
from stateful_gpu_loader.state.text_state import TextState
from tests.conformance import differing
from tests.state.typed_values import identical

SAMPLERS: dict[str, Callable[[], Any]] = {
    "shuffled": lambda: samplers.ShuffledSampler(range(10), seed=3),
    "weighted": lambda: samplers.WeightedSampler([0.1, 0.9, 0.5], 10, seed=3),
    "distributed": lambda: samplers.DistributedShuffledSampler(
        range(20), num_replicas=2, rank=1, seed=3
    ),
}


class Holder(TextState):
    """Any object with the two methods."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return {"held": self.state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict.keys() != {"held"}:
            raise StateMismatch("keys", saved=[*state_dict], present=["held"], remedy="keep them")
        self.state = state_dict["held"]


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("num_drawn", [0, 1, 7, 10])
def test_a_sampler_resumes_from_its_text(name: str, num_drawn: int) -> None:
    """DALI's Checkpoint asks every object so, with a stream."""
    sampler = SAMPLERS[name]()
    indices = iter(sampler)
    for _ in range(num_drawn):
        next(indices)
    text = sampler.get_state(cuda_stream=object())
    assert isinstance(text, str)
    expected = list(indices), list(sampler)

    restored = SAMPLERS[name]()
    restored.set_state(text)
    assert restored.get_state() == text
    assert (list(restored), list(restored)) == expected


def test_a_text_does_not_change_with_its_object() -> None:
    tensor = torch.zeros(2)
    holder = Holder({"t": tensor, "pair": (1, b"\0")})
    text = holder.get_state()
    tensor += 1
    restored = Holder()
    restored.set_state(text)
    assert identical(restored.state, {"t": torch.zeros(2), "pair": (1, b"\0")})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "[]",
        '{"held": ',
        '{"held": NaN}',
        '{"held": 1, "held": 2}',
        '{"held": {"$pickle": ""}}',
        '{"$tuple": []}',
        "[" * 100_000,
        "\ud800",
        RNG(3).get_state(),
        None,
        3,
        b'{"held": 1}',
        {"held": 1},
    ],
    ids=range(15),
)
def test_an_invalid_text_is_refused_and_changes_nothing(text: Any) -> None:
    holder = Holder(5)
    with pytest.raises(StateMismatch, check=differing("state")):
        holder.set_state(text)
    assert holder.state == 5


def test_errors_of_load_state_dict_keep_their_type() -> None:
    with pytest.raises(StateMismatch, check=differing("keys")):
        Holder(5).set_state('{"other": 1}')
    sampler = SAMPLERS["shuffled"]()
    with pytest.raises(StateMismatch, check=differing("order")):
        sampler.set_state(SAMPLERS["weighted"]().get_state())


def test_a_state_without_form_is_refused_with_its_place() -> None:
    with pytest.raises(TypeError, match=r"state\['held'\]"):
        Holder(object()).get_state()
