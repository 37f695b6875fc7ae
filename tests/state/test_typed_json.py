"""Typed JSON: values survive to the last bit, or are refused with their place."""

from __future__ import annotations

import enum
import json
import random
import struct
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

from stateful_gpu_loader.state.json_text import MAX_DIGITS
from stateful_gpu_loader.state.typed_json import decode, encode, parse, write
from tests.state.typed_values import TENSOR_NAMES, identical, values


def through_text(value: Any) -> Any:
    return decode(parse(write(encode(value)).encode()))


def test_sets_may_hold_nan_more_than_once() -> None:
    """Two NaN are two items, whatever their bits."""
    alike, other = (
        [float("nan"), float("nan")],
        struct.unpack("d", struct.pack("Q", 0x7FF8 << 48 | 1)),
    )
    for value in ({*alike}, {*alike, *other}, [{frozenset({*alike, *other}): None}]):
        assert identical(through_text(value), value)


@given(values)
def test_every_value_comes_back_to_the_last_bit_and_equal_values_have_one_text(value: Any) -> None:
    found = through_text(value)
    assert identical(found, value)
    assert write(encode(found)) == write(encode(value))


PLAIN = {"a": [1, -0.5, None, True, "é"], "b": {"c": -(2**100)}, "": {}}


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (PLAIN, PLAIN),
        (float("nan"), {"$float": "nan"}),
        (float("-inf"), {"$float": "-inf"}),
        (b"\0\xff", {"$bytes": "AP8="}),
        ((1, (2,)), {"$tuple": [1, {"$tuple": [2]}]}),
        ({3: "a", "b": 1}, {"$dict": [[3, "a"], ["b", 1]]}),
        ({"$tuple": [1]}, {"$dict": [["$tuple", [1]]]}),
        ({"$tuple": [1], "b": 2}, {"$tuple": [1], "b": 2}),
        ({"b", "a"}, {"$set": ["a", "b"]}),
        (OrderedDict(b=1, a=2), {"$ordered": [["b", 1], ["a", 2]]}),
        (Counter({3: 2, "b": 1}), {"$counter": [[3, 2], ["b", 1]]}),
        (torch.Size([2, 3]), {"$size": [2, 3]}),
        (torch.bfloat16, {"$dtype": "bfloat16"}),
        (
            torch.tensor([1.0], dtype=torch.bfloat16),
            {"$tensor": {"dtype": "bfloat16", "shape": [1], "data": "gD8="}},
        ),
        (np.array([1], ">i2"), {"$array": {"dtype": ">i2", "shape": [1], "data": "AAE="}}),
        (np.float32(1), {"$scalar": {"dtype": "<f4", "shape": [], "data": "AACAPw=="}}),
        ("\udc80", {"$str": "7bKA"}),
    ],
    # A set's text, and so the test's name, differs from process to process.
    ids=lambda argument: type(argument).__name__ if isinstance(argument, set) else str(argument),
)
def test_forms_of_version_1(value: Any, form: Any) -> None:
    assert json.loads(write(encode(value))) == form
    assert identical(decode(form), value)


def test_two_surrogates_are_not_joined_to_one_character() -> None:
    value = {"\ud83d\ude00": "\ud83d\ude00", "😀": "😀"}
    assert json.loads(json.dumps(value)) != value
    assert through_text(value) == value


@pytest.mark.parametrize("name", [*TENSOR_NAMES, "complex32"])
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_tensors_of_every_dtype(name: str) -> None:
    dtype = getattr(torch, name)
    whole = torch.arange(48 * dtype.itemsize, dtype=torch.uint8).view(dtype).reshape(2, 4, 6)
    if dtype == torch.bool:
        whole = torch.arange(48).reshape(2, 4, 6) % 2 == 0
    for tensor in (
        whole,
        whole.transpose(0, 2),
        whole[:, ::2, 1:5:3],
        whole[0, 0, 0],
        whole[0, :2, 0][::2],
        whole[:0],
        whole[:0].transpose(0, 1)[:, :, ::2],
        whole[:1].expand(3, 4, 6),
    ):
        found = through_text({"t": tensor})["t"]
        assert identical(found, tensor.clone())
        assert found.is_contiguous()


def test_lazily_conjugated_tensors_are_their_values() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    assert identical(through_text(tensor.conj()), torch.tensor([1 - 2j, 3 + 4j]))
    assert identical(through_text(tensor.conj().imag), torch.tensor([-2.0, 4.0]))
    for negated in (tensor[:1].conj().imag, tensor[0].conj().imag):
        assert negated.is_neg()
        assert negated.is_contiguous()
        assert identical(through_text(negated), torch.full(negated.shape, -2.0))


def test_arrays_of_any_strides_are_their_values() -> None:
    whole = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    for array in (whole.T, np.asfortranarray(whole), whole[:, ::2, ::-1], whole[0, 0, 0:0]):
        assert identical(through_text([array])[0], array.copy())


def test_encoded_and_decoded_values_can_be_changed_and_share_nothing() -> None:
    tensor, items = torch.zeros(3), [1]
    form = encode([tensor, tensor, np.zeros(3), items])
    tensor += 1
    items.append(2)
    one, other, array, kept = decode(form)
    one += 1
    array += 1
    assert (other.tolist(), kept) == ([0, 0, 0], [1])


def test_states_of_torch_and_of_generators() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1))
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    generators = [np.random.Generator(kind(3)) for kind in BIT_GENERATORS]
    for generator in generators:
        generator.random(3, dtype=np.float32)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "torch": torch.get_rng_state(),
        "python": random.Random(3).getstate(),
        "numpy": [generator.bit_generator.state for generator in generators],
        "legacy": np.random.RandomState(3).get_state(),
    }
    found = through_text(state)
    assert identical(found, state)
    assert found["model"]._metadata["1"] == {"version": 2}


BIT_GENERATORS = [
    np.random.PCG64,
    np.random.PCG64DXSM,
    np.random.MT19937,
    np.random.Philox,
    np.random.SFC64,
]


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


Pair = namedtuple("Pair", "a b")


def circle() -> list[Any]:
    inner: list[Any] = []
    inner += [inner, inner]
    return inner


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def with_attribute() -> Any:
    value: Any = OrderedDict()
    value.colour = 1
    return value


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Colour.RED, "Colour"),
        (Text("a"), "Text"),
        (Pair(1, 2), "Pair"),
        (defaultdict(int), r"defaultdict.*dict\(...\)"),
        (deque([1]), r"deque.*list\(...\)"),
        (bytearray(1), r"bytearray.*bytes\(...\)"),
        (np.str_("a"), r"str_.*str\(...\)"),
        (np.bytes_(b"a"), r"bytes_.*bytes\(...\)"),
        (1j, "complex"),
        (range(3), "range"),
        (len, "builtin_function_or_method"),
        (object(), "object"),
        (torch.Generator(), r"Generator.*register"),
        (torch.nn.Parameter(torch.ones(1)), r"Parameter.*detach\(\)"),
        (torch.ones(1, requires_grad=True), r"requires grad.*detach\(\)"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.ones(1, device="meta"), "meta"),
        (torch.empty(1, dtype=torch.bits8), "torch.bits8"),
        (torch.ones([1] * 65), "65 dimensions"),
        (torch.tensor([2], dtype=torch.uint8).view(torch.bool), "other bytes"),
        (np.array([None]), "array of object"),
        (np.zeros(1, "i4,f4"), r"array of \["),
        (np.zeros(1, np.longdouble), "array of float128"),
        (np.longdouble(1), "array of float128"),
        (np.array([0x110000], "<u4").view("<U1"), "no such value"),
        (np.array([2], "u1").view(bool), "no such value"),
        (np.ma.masked_array([1], [True]), "MaskedArray"),
        (2**1024, "an int of 1025 bits"),
        (-(2**1024), "an int of 1025 bits"),
        (circle(), "the same object as what holds it"),
        (nested(65), "nested deeper than 64"),
        (with_attribute(), "attributes.*'colour'"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_without_a_form_are_refused_with_their_place(value: Any, named: str) -> None:
    """Never pickled, never approximated."""
    for outer, place in (
        ({"a": [0, value]}, r"state\['a'\]\[1\]"),
        ({("x", 1): {2: value}}, r"state\[\('x', 1\)\]\[2\]"),
        (OrderedDict(k=(value,)), r"state\['k'\]\[0\]"),
    ):
        with pytest.raises(TypeError, match=rf"^{place}.*{named}") as caught:
            encode(outer)
        assert "Remedy: " in str(caught.value)


@pytest.mark.parametrize(
    "key", [torch.ones(1), Colour.RED, (1, torch.ones(1)), frozenset([Colour.RED]), object()]
)
def test_keys_that_do_not_compare_by_value_are_refused(key: Any) -> None:
    for value in ({key: 1}, OrderedDict([(key, 1)]), {key}, frozenset([key])):
        with pytest.raises(TypeError, match=r"^state\[.*Remedy"):
            encode(value)


def test_limits_are_inclusive() -> None:
    greatest = 2**1024 - 1
    for value in (greatest, -greatest, nested(64), [torch.ones([1] * 64)]):
        assert identical(through_text(value), value)
    assert len(str(greatest)) < MAX_DIGITS
    for deeper in (nested(65), [torch.ones([1] * 65)]):
        with pytest.raises(TypeError, match=r"deeper than 64|65 dimensions"):
            encode(deeper)


def test_the_deepest_value_can_be_read() -> None:
    """Each level takes the form that nests JSON deepest."""
    value: Any = torch.ones(1)
    for _ in range(64):
        value = OrderedDict(a=value)
        value._metadata = None
    assert identical(through_text(value), value)
