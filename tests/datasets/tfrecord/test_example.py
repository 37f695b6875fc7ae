"""tf.train.Example without TensorFlow, compared with bytes that TensorFlow wrote."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateful_gpu_loader.datasets import tf_example as module
from stateful_gpu_loader.datasets.tf_example import features_of, values_of
from tests.datasets.lmdb.lmdb_files import varint
from tests.datasets.record_files import delimited, example, feature, imagenet_example

# Output of TensorFlow's tutorial on TFRecord for serialize_example(False, 4, b"goat", 0.9876).
GOAT = (
    b"\nR\n\x11\n\x08feature0\x12\x05\x1a\x03\n\x01\x00\n\x11\n\x08feature1\x12\x05\x1a\x03\n\x01"
    b"\x04\n\x14\n\x08feature2\x12\x08\n\x06\n\x04goat\n\x14\n\x08feature3\x12\x08\x12\x06\n\x04["
    b"\xd3|?"
)


def parsed(message: bytes) -> dict[str, Any]:
    """Return all features in plain types: the values of each, and their type."""
    found: dict[str, Any] = {}
    for name, view in features_of(message).items():
        values = values_of(view)
        if isinstance(values, list):
            found[name] = [bytes(value) for value in values]
        elif values is not None:
            found[name] = (values.dtype.name, values.tolist())
        else:
            found[name] = None
    return found


def entry(name: str, value: bytes) -> bytes:
    return delimited(1, delimited(1, name.encode()) + delimited(2, value))


def test_what_tensorflow_wrote_is_read() -> None:
    expected = {
        "feature0": ("int64", [0]),
        "feature1": ("int64", [4]),
        "feature2": [b"goat"],
        "feature3": ("float32", [float(np.float32(0.9876))]),
    }
    assert parsed(GOAT) == expected
    names = ("feature0", "feature1", "feature2", "feature3")
    mine = dict(zip(names, ([0], [4], [b"goat"], [0.9876]), strict=True))
    assert example(mine) == GOAT


@pytest.mark.parametrize("packed", [True, False])
def test_numbers_are_read_packed_or_not(packed: bool) -> None:
    for numbers in (
        [7],
        [300],
        [-1],
        [2**63 - 1, -(2**63), 0, 127, 128],
        list(range(-50, 2000, 7)),
        [1, 2, 3, 4, 5, 6, 7, 8, 9],
        [],
    ):
        message = delimited(1, entry("n", feature(numbers, packed=packed)))
        assert parsed(message) == {"n": ("int64", numbers)}
    for floats in ([0.5], [1.5, -2.25, float("inf")], [0.0] * 100):
        message = delimited(1, entry("x", feature(floats, packed=packed)))
        assert parsed(message) == {"x": ("float32", floats)}


def test_floats_of_every_kind_keep_their_bits() -> None:
    bits = [0x7FC00001, 0x80000000, 1, 0xFF800000]
    message = delimited(1, entry("x", delimited(2, delimited(1, struct.pack("<4I", *bits)))))
    values = values_of(features_of(message)["x"])
    assert isinstance(values, np.ndarray)
    assert values.view(np.uint32).tolist() == bits


def test_bytes_are_read_one_or_many() -> None:
    features = {"one": [b"a" * 300], "two": [b"", b"b"], "empty": [b""]}
    assert parsed(example(features)) == features


def test_bytes_are_views_of_the_record_and_numbers_are_not() -> None:
    """A label must not keep its image in memory."""
    message = example({"x": [1.0, 2.0], "n": [1, 2], "image": [b"a" * 999]})
    data = np.frombuffer(bytearray(message), dtype=np.uint8)
    values = {name: values_of(view) for name, view in features_of(data.data).items()}
    assert not np.shares_memory(values["x"], data)
    assert not np.shares_memory(values["n"], data)
    assert np.shares_memory(np.frombuffer(values["image"][0], dtype=np.uint8), data)


def test_what_comes_twice_is_merged_as_in_every_reader_of_protocol_buffers() -> None:
    one, two, three = (delimited(3, delimited(1, varint(n))) for n in (1, 2, 3))
    text = delimited(1, delimited(1, b"t"))
    twice = delimited(1, entry("a", one) + entry("b", two)) + delimited(1, entry("a", three))
    assert parsed(twice) == {"a": ("int64", [3]), "b": ("int64", [2])}
    assert parsed(delimited(1, entry("a", one) + entry("a", two))) == {"a": ("int64", [2])}
    assert parsed(delimited(1, entry("a", one + three))) == {"a": ("int64", [1, 3])}
    assert parsed(delimited(1, entry("a", one + text))) == {"a": [b"t"]}
    assert parsed(delimited(1, entry("a", text + one))) == {"a": ("int64", [1])}
    values = delimited(1, delimited(1, b"a") + delimited(2, one) + delimited(2, two))
    assert parsed(delimited(1, values)) == {"a": ("int64", [1, 2])}


def test_an_order_and_fields_that_no_writer_uses_are_read() -> None:
    value = delimited(3, delimited(1, varint(5)))
    unknown = delimited(9, b"later version") + b"\x78\x01"
    swapped = delimited(1, delimited(2, value) + delimited(1, b"a"))
    assert parsed(delimited(1, swapped)) == {"a": ("int64", [5])}
    longer = b"\x0a" + bytes([len(value) + 5 | 0x80, 0]) + b"\x0a\x01a" + b"\x12"
    longer += bytes([len(value)]) + value
    assert parsed(delimited(1, longer)) == {"a": ("int64", [5])}
    assert parsed(unknown + delimited(1, unknown + entry("a", unknown + value) + unknown)) == {
        "a": ("int64", [5])
    }
    assert parsed(delimited(1, delimited(1, delimited(2, value)))) == {"": ("int64", [5])}
    long_name = "n" * 200
    assert parsed(delimited(1, entry(long_name, value))) == {long_name: ("int64", [5])}


def test_a_feature_without_a_kind_has_no_values() -> None:
    assert parsed(delimited(1, entry("a", b""))) == {"a": None}
    assert parsed(delimited(1, delimited(1, delimited(1, b"a")))) == {"a": None}
    assert parsed(b"") == {}
    assert parsed(delimited(1, b"")) == {}


def test_what_is_no_example_is_named() -> None:
    for message, text in (
        (b"\x0a\x05abc", "claims 5 bytes"),
        (delimited(1, b"\x0a\x7fabc"), "claims 127 bytes"),
        (delimited(1, entry("a", b"\x1a\x7f")), "claims 127 bytes"),
        (delimited(1, entry("a", delimited(3, b"\x0a\x7f"))), "claims 127 bytes"),
        (delimited(1, entry("a", delimited(3, delimited(1, b"\x80")))), "ends inside a number"),
        (delimited(1, entry("a", delimited(2, delimited(1, b"abc")))), "ends inside a number"),
        (delimited(1, delimited(1, delimited(1, b"\xff"))), "not UTF-8"),
    ):
        with pytest.raises(ValueError, match=text):
            parsed(message)


NAMES = st.text(max_size=5)
FEATURES = st.one_of(
    st.lists(st.binary(max_size=200), min_size=1, max_size=3),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=4),
)


@given(st.dictionaries(NAMES, FEATURES, max_size=5), st.booleans())
def test_every_example_comes_back(features: dict[str, Any], packed: bool) -> None:
    message = delimited(
        1, b"".join(entry(name, feature(v, packed=packed)) for name, v in features.items())
    )
    expected = {
        name: values
        if values and isinstance(values[0], bytes)
        else ("float32" if values and isinstance(values[0], float) else "int64", values)
        for name, values in features.items()
    }
    assert parsed(message) == expected


MESSAGE = example(imagenet_example(b"jpeg" * 50, 3))


@given(st.lists(st.tuples(st.integers(0, len(MESSAGE) - 1), st.integers(0, 255)), max_size=4))
def test_the_quick_way_and_the_thorough_way_agree(changes: list[tuple[int, int]]) -> None:
    """For any bytes, both return the same features, or both refuse."""
    changed = bytearray(MESSAGE)
    for at, value in changes:
        changed[at] = value
    quick = _outcome(bytes(changed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_entries_as_usual", lambda features: None)
        patch.setattr(module, "_value_as_usual", lambda feature: (0, feature))
        assert _outcome(bytes(changed)) == quick


def _outcome(message: bytes) -> str:
    try:
        return repr(parsed(message))
    except ValueError:
        return "no example"
