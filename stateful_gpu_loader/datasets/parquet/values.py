"""Values of Parquet columns, row by row: what a batch's targets can be made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.datasets.parquet.files import arrow

Read = Callable[[int], Any]
"""The value of a row of an array."""


def check_type(kind: Any) -> None:
    """Refuse a type whose values torch cannot collate.

    Args:
        kind: ``pyarrow.DataType``.

    Raises:
        TypeError: it is a decimal, a map, a union, or nothing but nulls.
    """
    types = arrow().types
    if isinstance(kind, arrow().BaseExtensionType):
        check_type(kind.storage_type)
    elif types.is_struct(kind):
        for field in kind:
            check_type(field.type)
    elif _is_list(types, kind) or types.is_dictionary(kind):
        check_type(kind.value_type)
    elif not (
        types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_temporal(kind)
        or _is_text(types, kind)
        or is_bytes(types, kind)
    ):
        raise TypeError(f"values of type {kind} cannot be collated")


def is_bytes(types: Any, kind: Any) -> bool:
    """Whether values are bytes, in whichever of Arrow's layouts."""
    is_view = getattr(types, "is_binary_view", lambda kind: False)(kind)
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or is_view
    )


def reader_of(array: Any) -> Read:
    """How to read the values of a ``pyarrow.Array``.

    Booleans, numbers, texts and bytes come as Python's own; dates, times and durations as the int
    that is stored, in the column's unit; lists of numbers as arrays of their own memory, lists of
    lists stacked where their lengths agree, other lists as lists; structs as dicts.

    Reading raises ValueError where a value is null, or is no text.

    >>> import pyarrow
    >>> read = reader_of(pyarrow.array([[[1, 2], [3, 4]], []]))
    >>> read(0)
    array([[1, 2],
           [3, 4]])
    """
    types = arrow().types
    if isinstance(array.type, arrow().BaseExtensionType):
        return reader_of(array.storage)
    kind = array.type
    if types.is_dictionary(kind):
        return reader_of(array.dictionary_decode())
    if types.is_struct(kind):
        fields = zip([field.name for field in kind], array.flatten(), strict=True)
        readers = {name: reader_of(child) for name, child in fields}
        return _not_null(array, lambda row: {name: read(row) for name, read in readers.items()})
    if _is_list(types, kind):
        return _not_null(array, _list_reader(types, array))
    if types.is_temporal(kind):
        array = array.view(arrow().int64() if kind.bit_width == 64 else arrow().int32())
    elif _is_text(types, kind) or is_bytes(types, kind):
        return _not_null(array, lambda row: array[row].as_py())
    values = _numbers(array)
    return _not_null(array, lambda row: values[row].item())


def bytes_of(array: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """An array of bytes as (int64 [n + 1] offsets, uint8 [...] all bytes); no copy of the bytes.

    Args:
        array: ``pyarrow.Array`` of any type of bytes.
    """
    types, kind = arrow().types, array.type
    if not types.is_large_binary(kind) and not types.is_binary(kind):
        array = array.cast(arrow().large_binary())
    width = np.int32 if types.is_binary(array.type) else np.int64
    _, offsets, data = array.buffers()
    if not len(array):
        return np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.uint8)
    ends = np.frombuffer(offsets, dtype=width)[array.offset : array.offset + len(array) + 1]
    content = np.empty(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)
    return ends.astype(np.int64), content


def _is_list(types: Any, kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_text(types: Any, kind: Any) -> bool:
    is_view = getattr(types, "is_string_view", lambda kind: False)(kind)
    return bool(types.is_string(kind) or types.is_large_string(kind) or is_view)


def _not_null(array: Any, read: Read) -> Read:
    if not array.null_count:
        return read
    valid = array.is_valid().to_numpy(zero_copy_only=False)

    def checked(row: int) -> Any:
        if not valid[row]:
            raise ValueError("it is null")
        return read(row)

    return checked


def _numbers(array: Any) -> npt.NDArray[Any]:
    """[n]: where a value is null, anything."""
    if array.null_count:
        array = array.fill_null(False if arrow().types.is_boolean(array.type) else 0)
    values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values


def _list_reader(types: Any, array: Any) -> Read:
    inner = array.values
    if types.is_fixed_size_list(array.type):
        width = array.type.list_size
        starts = (np.arange(len(array) + 1) + array.offset) * width
    else:
        starts = array.offsets.to_numpy()
    bounds: list[int] = starts.tolist()
    kind = inner.type
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        values, is_valid = _numbers(inner), _not_null(inner, lambda row: None)

        def numbers(row: int) -> Any:
            if inner.null_count:
                for i in range(bounds[row], bounds[row + 1]):
                    is_valid(i)
            return values[bounds[row] : bounds[row + 1]].copy()

        return numbers
    read, empty = reader_of(inner), _empty(types, array.type)

    def items(row: int) -> Any:
        found = [read(i) for i in range(bounds[row], bounds[row + 1])]
        if not found and empty is not None:
            return empty.copy()
        alike = {each.shape if isinstance(each, np.ndarray) else None for each in found}
        return found if None in alike or len(alike) != 1 else np.stack(found)

    return items


def _empty(types: Any, kind: Any) -> npt.NDArray[Any] | None:
    """No rows of lists of numbers; None for lists of something else."""
    shape = [0]
    while _is_list(types, kind.value_type):
        kind = kind.value_type
        shape.append(kind.list_size if types.is_fixed_size_list(kind) else 0)
    value = kind.value_type
    if not (types.is_boolean(value) or types.is_integer(value) or types.is_floating(value)):
        return None
    return np.empty(shape, dtype=value.to_pandas_dtype())
