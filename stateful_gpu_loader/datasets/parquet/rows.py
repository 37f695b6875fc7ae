"""Rows of Parquet files as encoded images and targets: columns and their values."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.datasets.parquet.files import arrow
from stateful_gpu_loader.datasets.storage.failures import damaged
from stateful_gpu_loader.datasets.storage.memory import Bytes, Memory, new_memory
from stateful_gpu_loader.datasets.storage.open_files import read_whole
from stateful_gpu_loader.datasets.storage.paths import is_url
from stateful_gpu_loader.datasets.target_choice import Target, TargetChoice
from stateful_gpu_loader.records import EncodedSample

_BYTES, _PATH = "bytes", "path"
"""Fields of an image struct, as the Hugging Face hub stores it."""
_MOST_LISTED = 50
"""Maximum number of columns that an error lists."""


class Place(NamedTuple):
    """Place of a row, for its name and for errors."""

    path: str
    group: int
    """Number of the row group in the file."""
    row: int
    """Number of the row in the file."""


class Selection:
    """The image column and the target columns.

    Names may lead into structs: ``"photo.thumbnail"``.

    Attributes:
        columns: names of all columns, without duplicates.
        choice: makes the target from columns.

    Raises:
        TypeError: ``image`` or ``target`` has a wrong type.

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
        return json.dumps([self.image, self.choice.target], sort_keys=True)

    def check(self, path: str, schema: Any) -> None:
        """Check that a file has these columns, with supported types.

        Args:
            schema: ``pyarrow.Schema``.

        Raises:
            ValueError: a column is missing or has another type; the message lists the columns.
        """
        types = arrow().types
        image = self._type_of(path, schema, self.image, "image")
        fields = {field.name: field.type for field in image} if types.is_struct(image) else {}
        if not is_bytes(types, fields.get(_BYTES, image)):
            raise ValueError(
                f"{path!r}: the column {self.image!r} is of type {image}; an image is bytes, or a "
                "struct with a field 'bytes'. Remedy: pass image= with one of the columns: "
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
        """Return the rows of a ``pyarrow.Table`` or ``RecordBatch`` with these columns."""
        return Rows(self, table)


class Rows:
    """Decoded rows of a ``pyarrow.Table`` or ``RecordBatch``, numbered from 0."""

    def __init__(self, selection: Selection, table: Any) -> None:
        self._selection = selection
        self._num_rows = table.num_rows
        self.num_bytes = table.nbytes
        """Size of the decoded columns in memory."""
        self._image, self._path = _column(table, selection.image), None
        if arrow().types.is_struct(kind := self._image.type):
            fields = dict(zip([f.name for f in kind], self._image.flatten(), strict=True))
            self._image, self._path = fields[_BYTES], fields.get(_PATH)
        self._targets = {name: _column(table, name) for name in selection.choice.names}

    def __len__(self) -> int:
        return int(self._num_rows)

    def sample(self, row: int, place: Place, number: int) -> EncodedSample:
        """Return a row's image, newly allocated, and its target.

        Args:
            place: place of the row in its file.
            number: the target if the selection has no target column.

        Raises:
            OSError: the image is stored as a path, and that file cannot be read.
            ValueError: the row has no image, or a value of the target is null or not valid text.
        """
        try:
            image, target = self.image(row), self.target(row, number)
        except ValueError as error:
            where = f"row group {place.group}, row {place.row}"
            raise damaged(place.path, str(error), record=where) from error
        if isinstance(image, str):
            image = _read_beside(place.path, image)
        return EncodedSample(torch.from_numpy(image), target, f"{place.path}, row {place.row}")

    def image(self, row: int, memory: Memory = new_memory) -> Bytes | str:
        """Return a row's image in ``memory``, uint8 [num_bytes]; or its path, if only that exists.

        Raises:
            ValueError: the row has no image.
        """
        image = self._image[row]
        if image.is_valid:
            # A copy, so that a batch in flight does not hold its whole row group in memory.
            stored = np.frombuffer(image.as_buffer(), dtype=np.uint8)
            data = memory(len(stored))
            data[:] = stored
            return data
        path = None if self._path is None else self._path[row].as_py()
        if path is None:
            there = "neither bytes nor a path" if self._path is not None else "null"
            raise ValueError(f"the image in column {self._selection.image!r} is {there}")
        return str(path)

    def target(self, row: int, number: int) -> Any:
        """Return a row's target, or ``number`` if the selection has no target column.

        Raises:
            ValueError: a value is null or not valid text.
        """
        return self._selection.choice.make(lambda name: self._value(name, row), number)

    def _value(self, name: str, row: int) -> Any:
        try:
            return value_of(self._targets[name][row])
        except ValueError as error:
            raise ValueError(f"the value in column {name!r} cannot be used: {error}") from error


def _read_beside(path: str, image: str) -> npt.NDArray[np.uint8]:
    """Read the file that a row refers to: uint8 [num_bytes].

    Args:
        path: path of the Parquet file.
        image: a URL or a path; a relative path starts at the Parquet file's folder.

    Raises:
        OSError: the file cannot be read.
    """
    if is_url(image) or os.path.isabs(image):
        place = image
    elif is_url(path):
        place = f"{path.rpartition('/')[0]}/{image}"
    else:
        place = os.path.join(os.path.dirname(path), image)
    return read_whole(place)


def path_to(schema: Any, name: str) -> list[str]:
    """Split a name into a column and the fields inside its structs.

    A column's own name may contain dots. The list is empty if there is no such column.
    """
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        if (top := ".".join(parts[:count])) in schema.names:
            return [top, *parts[count:]]
    return []


def _column(table: Any, name: str) -> Any:
    """Return the array of a column or of a struct's field; rows of null structs are null."""
    top, *fields = path_to(table.schema, name)
    array = table.column(top)
    for field in fields:
        array = array.flatten()[array.type.get_field_index(field)]
    return array


def _listing(schema: Any) -> str:
    names = [f"{field.name} ({field.type})" for field in schema]
    return ", ".join(names[:_MOST_LISTED]) + ", ..." * (len(names) > _MOST_LISTED)


def check_type(kind: Any) -> None:
    """Refuse a type whose values torch cannot collate.

    Args:
        kind: ``pyarrow.DataType``.

    Raises:
        TypeError: the type is a decimal, a map, a union or null.
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
        _is_number(types, kind)
        or types.is_temporal(kind)
        or _is_text(types, kind)
        or is_bytes(types, kind)
    ):
        raise TypeError(f"values of type {kind} cannot be collated")


def is_bytes(types: Any, kind: Any) -> bool:
    """Return whether values are bytes, in any of Arrow's layouts."""
    is_view = getattr(types, "is_binary_view", lambda kind: False)(kind)
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or is_view
    )


def value_of(scalar: Any) -> Any:
    """Return the value of a ``pyarrow.Scalar`` of a type that :func:`check_type` accepts.

    Booleans, numbers, strings and bytes become Python values. Dates, times and durations become the
    stored int, in the column's unit. Lists of numbers become new arrays, and nested lists of equal
    lengths are stacked. Other lists stay lists. Structs become dicts.

    Raises:
        ValueError: the value, or a value inside it, is null or not valid text.

    >>> import pyarrow
    >>> value_of(pyarrow.scalar([[1, 2], [3, 4]]))
    array([[1, 2],
           [3, 4]])
    """
    types, kind = arrow().types, scalar.type
    if not scalar.is_valid:
        raise ValueError("it is null")
    if isinstance(kind, arrow().BaseExtensionType) or types.is_dictionary(kind):
        return value_of(scalar.value)
    if types.is_struct(kind):
        return {field.name: value_of(scalar[i]) for i, field in enumerate(kind)}
    if _is_list(types, kind):
        return _list_of(types, scalar.values, kind)
    if types.is_temporal(kind):
        return scalar.value
    # Older versions of pyarrow return NumPy's half floats.
    return float(scalar.as_py()) if types.is_floating(kind) else scalar.as_py()


def _is_list(types: Any, kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_number(types: Any, kind: Any) -> bool:
    return bool(types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind))


def _is_text(types: Any, kind: Any) -> bool:
    is_view = getattr(types, "is_string_view", lambda kind: False)(kind)
    return bool(types.is_string(kind) or types.is_large_string(kind) or is_view)


def _list_of(types: Any, items: Any, kind: Any) -> Any:
    if _is_number(types, kind.value_type):
        if items.null_count:
            raise ValueError("it is null")
        # A copy, so that a batch in flight does not hold its whole row group in memory.
        return np.array(items.to_numpy(zero_copy_only=False))
    found = [value_of(item) for item in items]
    if not found:
        return _empty(types, kind)
    alike = {each.shape if isinstance(each, np.ndarray) else None for each in found}
    return found if None in alike or len(alike) != 1 else np.stack(found)


def _empty(types: Any, kind: Any) -> Any:
    """Return an array without rows for nested lists of numbers, else an empty list."""
    shape = [0]
    while _is_list(types, kind.value_type):
        kind = kind.value_type
        shape.append(kind.list_size if types.is_fixed_size_list(kind) else 0)
    if not _is_number(types, kind.value_type):
        return []
    return np.empty(shape, dtype=kind.value_type.to_pandas_dtype())
