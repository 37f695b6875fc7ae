"""Differences between two samples: every kind of field, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from stateful_gpu_loader.tools.differences import differences, num_samples, same, sample_of


@dataclass(eq=False)
class Box:
    left: int
    name: str


class Opaque:
    def __init__(self, value: Any) -> None:
        self.value = value


NAN = float("nan")
GREY = Image.new("L", (4, 3))
NESTED = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)

EQUAL = [
    (NAN, NAN),
    (torch.tensor([NAN]), torch.tensor([NAN])),
    (torch.zeros(2, 3).T, torch.zeros(3, 2)),
    (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)),
    (NESTED, NESTED.clone()),
    (np.array(["a", "b"]), np.array(["a", "b"])),
    (np.array([None, 1], object), np.array([None, 1], object)),
    (Box(1, "a"), Box(1, "a")),
    (Opaque([1]), Opaque([1])),
    (GREY, GREY.copy()),
    (int, int),
    (dataclass, dataclass),
    ({"a": [1, (2, b"x")], "b": {3}}, {"a": [1, (2, b"x")], "b": {3}}),
]
DIFFERENT = [
    (0.0, -0.0, ": -0.0, not 0.0"),
    (1, True, ": True, not 1"),
    ([1], (1,), ": (1,), not [1]"),
    (torch.tensor([0.0]), torch.tensor([-0.0]), "1 of 1 values differ, by 0 at most"),
    (torch.zeros(2), torch.zeros(2, dtype=torch.float64), ": float64 [2], not float32 [2]"),
    (torch.zeros(2), np.zeros(2, np.float32), ": float32 [2], not float32 [2]"),
    (torch.zeros(3, 4, 5), torch.ones(3, 4, 5), "20 of 20 pixels differ, by 1 at most"),
    (torch.tensor([1, 2, 3]), torch.tensor([1, 5, 3]), "first at [1]: 5, not 2"),
    (torch.ones(1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bfloat16), "by 1 at most"),
    (np.array(["a", "b"]), np.array(["a", "c"]), "1 of 2 values differ; the first at [1]: c"),
    (np.array([None], object), np.array([2], object), "[0]: 2, not None"),
    ({"a": 1}, {"b": 1}, "the keys ['b'], not ['a']"),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "the order of the keys"),
    ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, "['a']['b'][1]: 3, not 2"),
    ([1, 2], [1], ": 1 elements, not 2"),
    (["x", "y", "z"], ["z", "x", "y"], "the same elements in another order"),
    ("abc", "abd", "'abd', not 'abc'; the first difference at 2"),
    (b"abc", b"ab", "the first difference at 2"),
    (Box(1, "a"), Box(2, "a"), ".left: 2, not 1"),
    (Opaque([1]), Opaque([2]), "['value'][0]: 2, not 1"),
    (GREY, GREY.convert("RGB"), "['mode']: 'RGB', not 'L'"),
    (GREY, Image.new("L", (4, 3), 7), "['pixels']: 12 of 12 values differ, by 7 at most"),
    ({1}, {2}, ": {2}, not {1}"),
    (int, str, ": <class 'str'>, not <class 'int'>"),
    (same, differences, ": <function differences"),
]


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_equal_values(one: Any, other: Any) -> None:
    assert list(differences(one, other)) == []
    assert same(one, other)


@pytest.mark.parametrize(("one", "other", "says"), DIFFERENT)
def test_different_values(one: Any, other: Any, says: str) -> None:
    assert says in str(next(differences(one, other)))
    assert not same(one, other)


def test_every_differing_field_is_reported() -> None:
    one = {"image": torch.zeros(2), "label": 1, "name": "a"}
    found = differences(one, {"image": torch.ones(2), "label": 1, "name": "b"})
    assert [each.field for each in found] == ["['image']", "['name']"]


@pytest.mark.parametrize(
    ("batch", "n", "sample"),
    [
        (torch.tensor([5, 6]), 2, torch.tensor(6)),
        ([torch.tensor([5, 6, 7]), ["a", "b", "c"]], 3, [torch.tensor(6), "b"]),
        ({"x": torch.tensor([[1, 2], [3, 4]]), "lr": 3}, 2, {"x": torch.tensor([3, 4]), "lr": 3}),
        ([{"a": 1}, {"a": 2}], 2, {"a": 2}),
        ([torch.zeros(3), torch.ones(4)], 2, torch.ones(4)),
        ([torch.tensor([1, 2]), torch.tensor([3, 4])], 2, [torch.tensor(2), torch.tensor(4)]),
    ],
)
def test_a_sample_of_a_batch(batch: Any, n: int, sample: Any) -> None:
    assert same(sample_of(batch, 1, n), sample)


def test_the_number_of_samples_is_the_length_of_the_first_tensor() -> None:
    assert num_samples({"name": ["a"], "image": [torch.zeros(3, 2), torch.zeros(3)]}) == 3
    assert num_samples(["a", "b"]) is None
