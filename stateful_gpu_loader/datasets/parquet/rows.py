"""Rows of Parquet files as encoded images and their targets: which columns those are."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.datasets.parquet.files import arrow
from stateful_gpu_loader.datasets.parquet.values import (
    Read,
    bytes_of,
    check_type,
    is_bytes,
    reader_of,
)
from stateful_gpu_loader.datasets.storage.open_files import read_whole
from stateful_gpu_loader.datasets.storage.paths import is_url
from stateful_gpu_loader.datasets.target_choice import Target, TargetChoice

_BYTES, _PATH = "bytes", "path"
"""Fields of a struct that holds an image, as the Hugging Face hub stores it."""


@dataclass(frozen=True)
class Selection:
    """Which column is the image, and which are the target.

    Names may lead into structs: ``"photo.thumbnail"``.

    Raises:
        TypeError: ``target`` is of another kind.

    >>> Selection("image", {"caption": "text", "score": "stats.score"}).columns
    ('image', 'text', 'stats.score')
    """

    image: str
    target: Target = None

    def __post_init__(self) -> None:
        target = self.target
        names = list(target.values()) if isinstance(target, Mapping) else target
        is_known = names is None or isinstance(names, (str, tuple, list))
        if not is_known or not all(isinstance(name, str) for name in (names or ())):
            raise TypeError(
                f"{target = } must be the name of a column, a tuple or list of names, a dict "
                "{new name: column} or None"
            )
        if not isinstance(self.image, str):
            raise TypeError(f"image = {self.image!r} must be the name of a column")

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns, none twice."""
        return tuple(dict.fromkeys((self.image, *self.choice.names)))

    @cached_property
    def choice(self) -> TargetChoice:
        """What makes a target of columns."""
        return TargetChoice(self.target)

    def describe(self) -> str:
        """The selection as text, for fingerprints."""
        target = self.target
        plain = dict(target) if isinstance(target, Mapping) else target
        return json.dumps([self.image, plain], sort_keys=True)

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
        found = _walk(schema, name)
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
    """Decoded rows, from 0."""

    def __init__(self, batches: list[_Batch], num_bytes: int) -> None:
        self._batches = batches
        self._ends = np.cumsum([len(batch) for batch in batches], dtype=np.int64)
        self.num_bytes = num_bytes
        """That the decoded columns take in memory."""

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._batches else 0

    def image(self, row: int) -> npt.NDArray[np.uint8] | str:
        """uint8 [num_bytes] of memory of its own; a path, where only that is stored.

        Raises:
            ValueError: there is neither.
        """
        batch, at = self._place(row)
        return batch.image(at)

    def target(self, row: int, number: int) -> Any:
        """The target, as the selection says; ``number`` where it says nothing.

        Raises:
            ValueError: a value is null, or is no text; the text names the column.
        """
        batch, at = self._place(row)
        return batch.target(at, number)

    def _place(self, row: int) -> tuple[_Batch, int]:
        if len(self._batches) == 1:
            return self._batches[0], row
        number = int(self._ends.searchsorted(row, side="right"))
        start = int(self._ends[number - 1]) if number else 0
        return self._batches[number], row - start


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


def read_beside(path: str, image: str) -> npt.NDArray[np.uint8]:
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


def _column(batch: Any, name: str) -> Any:
    """The array of a column, or of a field of a struct, rows of null structs being null."""
    if name in batch.schema.names:
        return batch.column(name)
    top = next(each for each in _prefixes(name) if each in batch.schema.names)

    def inner(array: Any, part: str) -> Any:
        return array.flatten()[array.type.get_field_index(part)]

    return reduce(inner, name[len(top) + 1 :].split("."), batch.column(top))


def _walk(schema: Any, name: str) -> Any:
    """The type at a name; None where there is none."""
    if name in schema.names:
        return schema.field(name).type
    top = next((each for each in _prefixes(name) if each in schema.names), None)
    if top is None:
        return None
    found = schema.field(top).type
    for part in name[len(top) + 1 :].split("."):
        if not arrow().types.is_struct(found) or found.get_field_index(part) < 0:
            return None
        found = found.field(part).type
    return found


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]


def _listing(schema: Any, limit: int = 50) -> str:
    names = [f"{field.name} ({field.type})" for field in schema]
    return ", ".join(names[:limit]) + ", ..." * (len(names) > limit)
