"""Values returned for the columns of Parquet files."""

from __future__ import annotations

import datetime
import math
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stateful_gpu_loader.datasets.parquet.rows import check_type, value_of
from tests.conformance import same


def values(array: Any) -> list[Any]:
    return [value_of(array[row]) for row in range(len(array))]


@pytest.mark.parametrize(
    ("kind", "given_values", "type_"),
    [
        (pyarrow.bool_(), [True, False], bool),
        (pyarrow.int8(), [-128, 127], int),
        (pyarrow.uint64(), [2**64 - 1, 0], int),
        (pyarrow.int64(), [-(2**63), 2**63 - 1], int),
        (pyarrow.float32(), [0.5, -2.0], float),
        (pyarrow.float64(), [0.1, 1e300], float),
        (pyarrow.string(), ["ä", ""], str),
        (pyarrow.large_string(), ["x", "y"], str),
        (pyarrow.string_view(), ["x", "a longer text than twelve"], str),
        (pyarrow.binary(), [b"\0", b""], bytes),
        (pyarrow.binary(2), [b"ab", b"cd"], bytes),
        (pyarrow.dictionary(pyarrow.int8(), pyarrow.string()), ["cat", "dog"], str),
    ],
)
def test_plain_values_are_pythons_own(kind: Any, given_values: list[Any], type_: type) -> None:
    """default_collate accepts them, and they compare equal after a resume."""
    found = values(pyarrow.array(given_values, kind))
    assert found == given_values
    assert {type(each) for each in found} == {type_}


def test_half_floats_are_floats_and_nan_is_not_null() -> None:
    assert values(pyarrow.array(np.array([0.5, 2.0], dtype=np.float16))) == [0.5, 2.0]
    assert math.isnan(values(pyarrow.array([math.nan]))[0])


def test_times_are_the_int_that_is_stored() -> None:
    day = datetime.date(1970, 1, 11)
    assert values(pyarrow.array([day])) == [10]
    moment = datetime.datetime(1970, 1, 1, 0, 0, 2)
    assert values(pyarrow.array([moment], pyarrow.timestamp("ms"))) == [2000]
    assert values(pyarrow.array([datetime.timedelta(seconds=1)], pyarrow.duration("us"))) == [10**6]
    assert values(pyarrow.array([datetime.time(0, 0, 3)], pyarrow.time32("s"))) == [3]


@pytest.mark.parametrize("kind", [pyarrow.list_, pyarrow.large_list])
def test_lists_of_numbers_are_arrays_of_their_own(kind: Any) -> None:
    array = pyarrow.array([[1, 2], [], [3]], kind(pyarrow.int16()))
    found = values(array)
    for one, other in zip(found, ([1, 2], [], [3]), strict=True):
        assert same(one, np.array(other, dtype=np.int16))
    found[0][:] = 9
    assert values(array)[0].tolist() == [1, 2]
    torch.from_numpy(found[0])


def test_fixed_lists_are_arrays_and_lists_of_boxes_are_stacked() -> None:
    """Uneven lists stay lists; lists of texts and structs are lists and dicts."""
    pairs = pyarrow.list_(pyarrow.float32(), 2)
    array = pyarrow.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pairs)
    assert same(values(array.slice(1))[0], np.array([3, 4], dtype=np.float32))
    boxes = pyarrow.list_(pyarrow.list_(pyarrow.float32(), 4))
    found = values(pyarrow.array([[[1, 2, 3, 4], [5, 6, 7, 8]], []], boxes))
    assert found[0].shape == (2, 4)
    assert same(found[1], np.empty((0, 4), dtype=np.float32))
    found = values(pyarrow.array([[[1], [2, 3]], [["x"]][:0]]))
    assert [each.tolist() for each in found[0]] == [[1], [2, 3]]
    assert found[1].shape == (0, 0)
    rows = [{"names": ["a", "b"], "size": {"h": 1}}, {"names": [], "size": {"h": 2}}]
    assert values(pyarrow.array(rows)) == rows


@pytest.mark.parametrize(
    "array",
    [
        pyarrow.array([1, None]),
        pyarrow.array([True, None]),
        pyarrow.array(["a", None]),
        pyarrow.array([[1], None]),
        pyarrow.array([[1], [None]]),
        pyarrow.array([{"a": 1}, None]),
        pyarrow.array([{"a": 1}, {"a": None}]),
        pyarrow.array([datetime.date(2020, 1, 1), None]),
        pyarrow.array(["a", None]).dictionary_encode(),
    ],
)
def test_a_null_is_refused_and_its_neighbour_is_not(array: Any) -> None:
    value_of(array[0])
    with pytest.raises(ValueError, match="it is null"):
        value_of(array[1])


@pytest.mark.parametrize(
    "kind",
    [
        pyarrow.decimal128(5, 2),
        pyarrow.map_(pyarrow.string(), pyarrow.int8()),
        pyarrow.null(),
        pyarrow.list_(pyarrow.null()),
        pyarrow.struct([("a", pyarrow.decimal128(5, 2))]),
    ],
)
def test_types_that_cannot_be_collated_are_refused(kind: Any) -> None:
    with pytest.raises(TypeError, match="cannot be collated"):
        check_type(kind)


@given(
    st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5), max_size=9), st.integers(0, 9)
)
def test_lists_agree_with_pyarrow(rows: list[list[int]], start: int) -> None:
    array = pyarrow.array(rows, pyarrow.list_(pyarrow.int32())).slice(start)
    assert [each.tolist() for each in values(array)] == array.to_pylist()
