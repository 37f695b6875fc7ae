"""Batches of any structure, tensor by tensor."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from stateful_gpu_loader.engine.device.moving import (
    SMALL_BYTES,
    map_tensors,
    move_tensors,
    tensors_of,
)
from tests.fake_gpu import FakePlace

Pair = namedtuple("Pair", ["image", "label"])


@dataclass(frozen=True)
class Boxes:
    corners: torch.Tensor
    name: str


def added(thing: Any) -> Any:
    return thing + 1


@pytest.mark.parametrize(
    "structure",
    [
        lambda leaf: leaf,
        lambda leaf: [leaf, "text", 3],
        lambda leaf: (leaf, None),
        lambda leaf: Pair(leaf, b"bytes"),
        lambda leaf: {"a": leaf, "b": [leaf]},
        lambda leaf: OrderedDict(a=leaf),
        lambda leaf: Boxes(leaf, "box"),
        lambda leaf: [{"a": (leaf, [leaf])}],
    ],
)
def test_structures_are_kept_and_tensors_changed(structure: Any) -> None:
    batch, wanted = structure(torch.zeros(2)), structure(torch.ones(2))
    changed = map_tensors(batch, added)
    assert type(changed) is type(batch)
    assert repr(changed) == repr(wanted)
    assert all(tensor.sum() == 0 for tensor in tensors_of(batch)), "the batch itself stays"
    assert len(tensors_of(batch)) == repr(batch).count("tensor(")


def test_objects_without_tensors_are_returned_unchanged() -> None:
    for thing in ("text", b"bytes", 3, None, np.zeros(2), range(3), torch.Tensor, {1, 2}):
        assert map_tensors(thing, added) is thing


def test_an_object_that_can_be_moved_is_not_looked_into() -> None:
    packed = pack_sequence([torch.ones(2), torch.ones(1)])
    seen: list[Any] = []
    map_tensors([packed], lambda thing: seen.append(thing) or thing)
    assert len(seen) == 1
    assert isinstance(seen[0], PackedSequence)
    assert tensors_of([packed]) == []


def test_tensors_that_differ_in_length_alone_are_copied_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Except large tensors, and tensors of another dtype or layout."""
    place, copied = FakePlace(), []
    monkeypatch.setattr(place, "copy_in", lambda given: copied.append(given) or given.clone())
    boxes = [torch.rand(n, 4) for n in (3, 0, 1)]
    labels = [torch.arange(n) for n in (3, 0, 1)]
    batch = [{"boxes": pair[0], "labels": pair[1]} for pair in zip(boxes, labels, strict=True)]
    alone = [
        torch.rand(4, 3).t(),
        torch.tensor(1.0),
        torch.ones(2, 4, dtype=torch.complex64),
        torch.zeros(SMALL_BYTES + 1, dtype=torch.uint8),
        torch.nn.Parameter(torch.ones(1, 4), requires_grad=False),
    ]
    moved = move_tensors([batch, *alone], place)
    assert len(copied) == 2 + len(alone)
    pairs = list(zip(tensors_of([batch, *alone]), tensors_of(moved), strict=True))
    assert len(pairs) == 6 + len(alone)
    for given, found in pairs:
        assert torch.equal(given, found)
        assert (given.dtype, given.stride()) == (found.dtype, found.stride())


def test_a_copied_tensor_may_be_changed_while_another_one_waits_for_a_backward_pass() -> None:
    with torch.no_grad():
        first, second = move_tensors([torch.ones(2, 4), torch.ones(3, 4)], FakePlace())
    weight = torch.ones(4, requires_grad=True)
    loss = (weight * first).sum()
    second *= 2
    second *= weight
    loss.backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert torch.equal(first, torch.ones(2, 4))


def test_a_defaultdict_keeps_its_factory() -> None:
    batch = defaultdict(list, {"a": torch.zeros(1)})
    changed = map_tensors(batch, added)
    assert changed["a"] == 1
    assert changed["new"] == []
    assert batch["a"] == 0


def test_a_type_that_cannot_be_rebuilt_becomes_a_plain_one() -> None:
    class Odd(list[Any]):
        def __init__(self, first: Any, second: Any) -> None:
            super().__init__([first, second])

    assert map_tensors(Odd(torch.zeros(1), 2), added) == [torch.ones(1), 2]
