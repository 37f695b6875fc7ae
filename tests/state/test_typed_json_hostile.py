"""Hand-made typed JSON is refused, in time and memory bounded by its length."""

from __future__ import annotations

import copy
import json
import math
import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateful_gpu_loader.state.json_text import MAX_JSON_DEPTH
from stateful_gpu_loader.state.typed_json import decode, encode, parse, write
from tests.state.typed_values import identical, values

JUNK = st.sampled_from(
    [
        *(None, True, False, 0, 1, -1, 2**63, 2**1024, 0.5, math.inf, math.nan, "", "a", "AQ=="),
        *("<f8", "|b1", ">U1", "float32", "bool", "nan", "$tuple", "\ud800", "7ff8000000000001"),
        *([], [[]], [1, 1], [["a", 1]], [["a", 1], ["a", 2]], {}, {"$": 1}, {"$tuple": 3}),
        *({"$tuple": []}, {"$set": [2, 1]}, {"$set": [1, True]}, {"$set": [[1]]}, {"$float": "0"}),
        {"$str": "YQ=="},
        {"$bytes": "AR=="},
        {"$bytes": "A Q="},
        {"$dict": [["a", 1]]},
        {"$tensor": {"dtype": "bool", "shape": [1], "data": "Ag=="}},
        {"$tensor": {"dtype": "uint8", "shape": [0, 2**62, 2**62], "data": ""}},
        {"$array": {"dtype": ">U1", "shape": [1], "data": "ABEAAA=="}},
        {"$array": {"dtype": "|u1", "shape": [1] * 70, "data": "Ag=="}},
    ]
)


@pytest.mark.fuzz
@settings(max_examples=150)
@given(values, st.integers(0, 10**6), JUNK)
def test_an_altered_form_is_refused_or_another_value(value: Any, number: int, junk: Any) -> None:
    """A value that is read has some valid encoding."""
    form = json.loads(write(encode({"state": value})))
    slots = list(_slots(form))
    holder, key = slots[number % len(slots)]
    holder[key] = copy.deepcopy(junk)
    _refused_or_exact(form)


@given(st.recursive(JUNK, lambda inner: st.lists(inner, max_size=3), max_leaves=5))
def test_junk_is_refused_or_a_value(junk: Any) -> None:
    for name in ("tuple", "set", "dict", "ordered", "state_dict", "size", "tensor", "array"):
        _refused_or_exact({f"${name}": copy.deepcopy(junk)})


def _refused_or_exact(form: Any) -> None:
    try:
        value = decode(form)
    except ValueError:
        return
    assert identical(decode(encode(value)), value)
    assert write(encode(value)) == write(form)


def _slots(form: Any) -> Iterator[tuple[Any, Any]]:
    items = form.items() if isinstance(form, dict) else enumerate(form)
    for key, inner in list(items):
        yield form, key
        if isinstance(inner, dict | list):
            yield from _slots(inner)


@pytest.mark.parametrize(
    "form",
    [
        {"$pickle": "gASVC..."},
        {"$object": {"class": "os.system"}},
        {"$": 1},
        {"$tensor": {"dtype": "uint8", "shape": [1], "data": "AQI="}},
        {"$tensor": {"dtype": "uint8", "shape": [True], "data": "AQ=="}},
        {"$tensor": {"dtype": "uint8", "shape": [1] * 65, "data": "AQ=="}},
        {"$array": {"dtype": "|u1", "shape": [1], "data": "AQI="}},
        {"$array": {"dtype": "|u1", "shape": [True], "data": "AQ=="}},
        {"$array": {"dtype": "<M8[1s]", "shape": [0], "data": ""}},
        {"$scalar": {"dtype": ">f4", "shape": [], "data": "AACAPw=="}},
        {"$scalar": {"dtype": "<f4", "shape": [1], "data": "AACAPw=="}},
        {"$scalar": {"dtype": "|S1", "shape": [], "data": "AQ=="}},
        {"$float": "0000000000000000"},
        {"$float": "7ff8000000000000"},
        {"$float": "7FF8000000000001"},
        {"$bytes": "", "\ud800": 1},
        {"$tuple": [], "\ud800": 1},
        {"$tuple": (1, 2)},
        (1, 2),
        b"1",
        {1: 2},
        1j,
    ],
    ids=lambda form: str(form)[:70],
)
def test_forms_that_no_encoder_writes_are_refused_with_their_place(form: Any) -> None:
    with pytest.raises(ValueError, match=r"^state\['a'\]\[1\].* is no value: "):
        decode({"a": [0, form]})


@pytest.mark.parametrize(
    "form",
    [
        {"$tensor": {"dtype": "float32", "shape": [1 << 28], "data": "AAAA"}},
        {"$tensor": {"dtype": "float32", "shape": [1 << 62] * 64, "data": "AAAA"}},
        {"$tensor": {"dtype": "uint8", "shape": [1, 1 << 30], "data": ""}},
        {"$array": {"dtype": "<f8", "shape": [1 << 27], "data": ""}},
        {"$array": {"dtype": "|S999999999", "shape": [1], "data": "AAAA"}},
        {"$array": {"dtype": "<U999999999", "shape": [1], "data": "AAAA"}},
        {"$size": [1 << 63]},
    ],
    ids=lambda form: str(form)[:60],
)
def test_a_claim_of_a_gigabyte_allocates_nothing(form: Any) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="is no value"):
            decode(form)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[" * 1_000_000, "1000000"),
        (b'{"a":' * 301 + b"1" + b"}" * 301, "301"),
        (b'["\\\\", ' * 400, "400"),
        (b'["\\"[", ' * 400, "400"),
        (b"[]," * 40_000 + b"[" * 301, "301"),
        (b"[" + b"9" * 401 + b"]", "400 digits"),
        (b"[0." + b"1" * 10_000_000 + b"]", "400 digits"),
        (b"1e" + b"0" * 10_000_000, "400 digits"),
        (b'{"a": 1, "b": {"c": 1, "c": 1}}', "'c'"),
        (b'{"a": NaN}', "NaN"),
        (b"[-Infinity]", "-Infinity"),
        (b'"\xff"', "utf-8"),
        (b'"\xed\xa0\x80"', "utf-8"),
        (b"", "Expecting value"),
        (b'{"a": 1', "Expecting"),
        (b"[1] 2", "Extra data"),
        (b"\xef\xbb\xbf[1]", "BOM"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_invalid_or_oversized_json_is_refused(text: bytes, reason: str) -> None:
    """No RecursionError, whatever the recursion limit; no quadratic time."""
    with pytest.raises(ValueError, match=reason):
        parse(text)


def test_brackets_and_digits_within_strings_do_not_count() -> None:
    value = {"[" * 1000: "]}" * 1000, 'a"b\\' + "[" * 1000: ["9" * 1000, '\\"[' * 500]}
    assert parse(write(value).encode()) == value
    deepest = b"[" * MAX_JSON_DEPTH + b"]" * MAX_JSON_DEPTH
    assert parse(deepest + b" ")
    assert parse(b"[" + b"9" * 400 + b"]") == [10**400 - 1]


@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="the parser's depth is counted apart from the callers'"
)
def test_too_little_stack_is_a_refusal() -> None:
    def at_depth(depth: int) -> Any:
        if depth:
            return at_depth(depth - 1)
        return parse(b"[" * 290 + b"]" * 290)

    with pytest.raises(ValueError, match=r"stack"):
        at_depth(800)


def test_memory_is_in_proportion_to_the_text() -> None:
    """The worst case is Python's own memory for many empty objects."""
    for text in (b"[" * 1_000_000, b"[" + b"{}," * 100_000 + b"1]", b'"",' * 100_000):
        tracemalloc.start()
        try:
            parse(text)
        except ValueError:
            pass
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert peak < 40 * len(text) + (4 << 20)
