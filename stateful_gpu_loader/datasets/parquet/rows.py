"""Rows of Parquet files as encoded images and their targets: which columns those are."""

from __future__ import annotations

import bisect
import json
import os
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.datasets.damage import damaged
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
