"""Rows of Parquet files as encoded images and their targets: the columns, and their values."""

from __future__ import annotations

import bisect
import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.datasets.parquet.files import arrow
from stateful_gpu_loader.datasets.storage.failures import damaged
from stateful_gpu_loader.datasets.storage.open_files import read_whole
from stateful_gpu_loader.datasets.storage.paths import is_url
from stateful_gpu_loader.datasets.target_choice import Target, TargetChoice
from stateful_gpu_loader.records import EncodedSample

_BYTES, _PATH = "bytes", "path"
"""Fields of a struct that holds an image, as the Hugging Face hub stores it."""


class Place(NamedTuple):
    """Where a row lies, for its name and for errors."""

    path: str
    group: int
    """Number of the row group in the file."""
    row: int
    """Number of the row in the file."""


class Selection:
    """Which column is the image, and which are the target.

    Names may lead into structs: ``"photo.thumbnail"``.

    Attributes:
        columns: the names of all columns, none twice.
        choice: makes a target of columns.

    Raises:
        TypeError: ``image`` or ``target`` is of another kind.

    >>> Selection("image", {"caption": "text", "score": "stats.score"}).columns
    ('image', 'text', 'stats.score')
    """

    def __init__(self, image: str, target: Target) -> None:
        if not isinstance(image, str):
            raise TypeError(f"image = {image!r} must be the name of a column")
        self.image = image
        self.choice = TargetChoice(target)
        self.columns = tuple(dict.fromkeys((image, *self.choice.names)))

    def describe(self) -> str:
        """The selection as text, for fingerprints."""
        return json.dumps([self.image, self.choice.target], sort_keys=True)

    def check(self, path: str, schema: Any) -> None:
        """Whether a file has these columns, of types that can be used.

        Args:
            schema: ``pyarrow.Schema``.

        Raises:
            ValueError: a column is not there, or of another type; the text names those there are.
        """
        types = arrow().types
        image = self._type_of(path, schema, self.image, "image")
        fields = {field.name: field.type for field in image} if types.is_struct(image) else {}
        if not is_bytes(types, fields.get(_BYTES, image)):
            raise ValueError(
                f"{path!r}: the column {self.image!r} is of type {image}, and an image is bytes, "
                "or a struct with a field 'bytes'. Remedy: pass image= with one of the columns: "
                f"{_listing(schema)}"
            )
        for name in self.choice.names:
            kind = self._type_of(path, schema, name, "target")
            try:
                check_type(kind)
            except TypeError as error:
                raise ValueError(
                    f"{path!r}: the column {name!r} is of type {kind}: {error}. Remedy: pass "
                    f"target= with other columns, of these: {_listing(schema)}"
                ) from None

    def _type_of(self, path: str, schema: Any, name: str, argument: str) -> Any:
        top, *fields = path_to(schema, name) or [name]
        found: Any = schema.field(top).type if top in schema.names else None
        for field in fields:
            is_there = arrow().types.is_struct(found) and found.get_field_index(field) >= 0
            found = found.field(field).type if is_there else None
        if found is None:
            raise ValueError(
                f"{path!r} has no column {name!r}. Remedy: pass {argument}= with one of its "
                f"columns: {_listing(schema)}"
            )
        return found

    def rows(self, table: Any) -> Rows:
        """The rows of a ``pyarrow.Table`` or ``RecordBatch`` of these columns."""
        batches = table.to_batches() if hasattr(table, "to_batches") else [table]
        return Rows([_Batch(self, batch) for batch in batches], table.nbytes)


class Rows:
    """Decoded rows of a table, numbered from 0."""

    def __init__(self, batches: list[_Batch], num_bytes: int) -> None:
        self._batches = batches
        self._ends: list[int] = np.cumsum([len(batch) for batch in batches]).tolist()
        self.num_bytes = num_bytes
        """Bytes that the decoded columns take in memory."""

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def sample(self, row: int, place: Place, number: int) -> EncodedSample:
        """A row's image, in memory of its own, and its target.

        Args:
            row: its number among these rows.
            place: where it lies.
            number: the target where the selection names no column.

        Raises:
            OSError: the file that the row names instead of holding an image cannot be read.
            ValueError: it has no image, or a value of the target is null or no text.
        """
        i = bisect.bisect_right(self._ends, row)
        batch, at = self._batches[i], row - (self._ends[i - 1] if i else 0)
        try:
            image, target = batch.image(at), batch.target(at, number)
        except ValueError as error:
            where = f"row group {place.group}, row {place.row}"
            raise damaged(place.path, str(error), record=where) from error
        if isinstance(image, str):
            image = _read_beside(place.path, image)
        return EncodedSample(torch.from_numpy(image), target, f"{place.path}, row {place.row}")


class _Batch:
    """The columns of one ``pyarrow.RecordBatch``."""

    def __init__(self, selection: Selection, batch: Any) -> None:
        self._num_rows = batch.num_rows
        self._selection = selection
        image, self._path = _column(batch, selection.image), None
        if arrow().types.is_struct(image.type):
            fields = dict(zip([f.name for f in image.type], image.flatten(), strict=True))
            self._path = fields.get(_PATH)
            image = fields[_BYTES]
        self._has_image = image.is_valid().to_numpy(zero_copy_only=False)
        self._offsets, self._content = bytes_of(image)
        self._readers: dict[str, Read] = {
            name: reader_of(_column(batch, name)) for name in selection.choice.names
        }

    def __len__(self) -> int:
        return int(self._num_rows)

    def image(self, row: int) -> npt.NDArray[np.uint8] | str:
        """uint8 [num_bytes]; or a path, where only that is stored."""
        if self._has_image[row]:
            # A copy: a batch in flight must not hold its whole row group in memory.
            start, end = self._offsets[row : row + 2]
            data: npt.NDArray[np.uint8] = self._content[start:end].copy()
            return data
        path = None if self._path is None else self._path[row].as_py()
        if path is None:
            there = "neither bytes nor a path" if self._path is not None else "null"
            raise ValueError(f"the image in column {self._selection.image!r} is {there}")
        return str(path)

    def target(self, row: int, number: int) -> Any:
        return self._selection.choice.make(lambda name: self._value(name, row), number)

    def _value(self, name: str, row: int) -> Any:
        try:
            return self._readers[name](row)
        except ValueError as error:
            raise ValueError(f"the value in column {name!r} cannot be used: {error}") from error


def _read_beside(path: str, image: str) -> npt.NDArray[np.uint8]:
    """uint8 [num_bytes]: the file that a row names instead of holding it.

    Args:
        path: of the Parquet file.
        image: a URL, or a path: a relative one begins at the Parquet file's folder.

    Raises:
        OSError: it cannot be read.
    """
    if is_url(image) or os.path.isabs(image):
        place = image
    elif is_url(path):
        place = f"{path.rpartition('/')[0]}/{image}"
    else:
        place = os.path.join(os.path.dirname(path), image)
    return read_whole(place)


def path_to(schema: Any, name: str) -> list[str]:
    """The column that a name begins with, and the fields that lead on into its structs.

    A column's own name may hold dots; the list is empty where there is no such column.
    """
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        if (top := ".".join(parts[:count])) in schema.names:
            return [top, *parts[count:]]
    return []


def _column(batch: Any, name: str) -> Any:
    """The array of a column, or of a field of a struct, rows of null structs being null."""
    top, *fields = path_to(batch.schema, name)
    array = batch.column(top)
    for field in fields:
        array = array.flatten()[array.type.get_field_index(field)]
    return array


def _listing(schema: Any, limit: int = 50) -> str:
    names = [f"{field.name} ({field.type})" for field in schema]
    return ", ".join(names[:limit]) + ", ..." * (len(names) > limit)


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
