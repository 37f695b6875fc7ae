"""Reads the values in a folder of ``torch.distributed.checkpoint`` (DCP).

DCP itself executes pickles. Here the folder's index is read with stand-ins for DCP's own classes,
the only ones admitted, and values are read as weights only. Tensors, mostly a model's, are read
only on request.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stateful_gpu_loader.checkpoint.files import open_regular, read_regular, size_of
from stateful_gpu_loader.tools import torch_file
from stateful_gpu_loader.tools.pickle_machine import (
    MAX_BYTES,
    MAX_DEPTH,
    Function,
    Instance,
    read_pickle,
)

Key = tuple[str | int, ...]
"""Keys that lead to a value in nested containers."""

_INDEX = ".metadata"
_MOST_ITEMS = 1 << 20
"""Maximum number of items of all lists, unless more values are saved."""
_METADATA = "torch.distributed.checkpoint.metadata"
_CLASSES = {
    *((_METADATA, name) for name in ("Metadata", "MetadataIndex", "StorageMeta")),
    *((_METADATA, name) for name in ("BytesStorageMetadata", "TensorStorageMetadata")),
    *((_METADATA, name) for name in ("ChunkStorageMetadata", "TensorProperties")),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
}
"""Classes of DCP's objects in an index."""
_LAYOUT = ("torch.serialization", "_get_layout")
_PATHS = {("pathlib", "PosixPath"), ("pathlib", "WindowsPath")}
_PATHS_OF_313 = "pathlib._local"
"""Module of ``pathlib``'s classes in Python 3.13 only."""


@dataclass(frozen=True)
class Chunk:
    """Place of a value, or of part of a tensor, in the folder."""

    file: str
    """Path of the file in the folder."""
    first: int
    """First byte in the file."""
    num_bytes: int
    offset: tuple[int, ...]
    """Offset of the part in the tensor."""
    transforms: Any
    """DCP's extensions that changed the bytes, if any."""


@dataclass(frozen=True)
class Unread:
    """A value that :func:`read_values` leaves out: a tensor, or a value that cannot be read."""

    folder: Path
    chunks: tuple[Chunk, ...]
    """Chunks of a tensor, or the chunk of another value."""
    size: tuple[int, ...] | None
    """Size of a tensor; None for another value."""
    dtype: torch.dtype | None

    @property
    def is_tensor(self) -> bool:
        """Whether DCP keeps it as a tensor."""
        return self.size is not None

    def content(self) -> bytes:
        """Return the bytes of the first chunk."""
        return _content(self.folder, self.chunks[0])

    def read(self) -> Any:
        """Read the value.

        Raises:
            Exception: of many types, if a file is missing or damaged, or reading would execute
                code.
        """
        if self.size is None or self.dtype is None:
            return torch_file.load(self.content())
        claimed = torch.Size(self.size).numel() * self.dtype.itemsize
        stored = sum(chunk.num_bytes for chunk in self.chunks)
        if claimed > stored:
            raise ValueError(f"it claims {claimed} bytes, but {stored} are stored")
        whole = torch.empty(self.size, dtype=self.dtype)
        num_read = 0
        for chunk in self.chunks:
            numbers = torch_file.load(_content(self.folder, chunk))
            part = whole
            for dim, start in enumerate(chunk.offset):
                part = part.narrow(dim, start, numbers.shape[dim])
            part.copy_(numbers)
            num_read += numbers.numel()
        if num_read != whole.numel():
            raise ValueError(f"only {num_read} of its {whole.numel()} numbers are stored")
        return whole


def is_one(folder: Path) -> bool:
    """Return whether a folder is a distributed checkpoint."""
    return (folder / _INDEX).is_file()


def read_values(folder: Path) -> dict[str | int, Any]:
    """Return the saved values, nested as before, with an :class:`Unread` for each tensor.

    Raises:
        Exception: of many types, if the index is missing or damaged, or reading would execute code.
    """
    values, tree = _values(folder, _read_index(folder)), _TakenApart()
    for key, unread in values:
        inner = tree
        for name in key[:-1]:
            inner = inner.setdefault(name, _TakenApart())
        inner[key[-1]] = unread if unread.is_tensor else _value_of(unread)
    lists = _Lists(len(values))
    return {name: lists.joined(value) for name, value in tree.items()}


class _TakenApart(dict[str | int, Any]):
    """A dict or list whose values DCP saves one by one."""


def _value_of(unread: Unread) -> Any:
    try:
        return unread.read()
    except Exception:  # reading the value later raises the error
        return unread


class _Lists:
    """Restores the lists that DCP has taken apart.

    The last index sets a list's length, so all lengths are limited.
    """

    def __init__(self, num_values: int) -> None:
        self._num_values = num_values
        self._left = max(num_values, _MOST_ITEMS)

    def joined(self, value: Any) -> Any:
        """Return a value with the lists inside it restored."""
        if not isinstance(value, _TakenApart):
            return value
        inner = {name: self.joined(each) for name, each in value.items()}
        places = [name for name in inner if isinstance(name, int)]
        if not places or len(places) < len(inner):
            return inner
        self._left -= max(places) + 1
        if min(places) < 0 or max(places) >= self._num_values or self._left < 0:
            raise ValueError(f"{_INDEX} has places {min(places)} to {max(places)} in a list")
        return [inner.get(i) for i in range(max(places) + 1)]


def with_tensors(value: Any, name: str) -> Any:
    """Return a value with the parts that :func:`read_values` left out.

    Args:
        value: a value of :func:`read_values`.
        name: name of the value, for an error.

    Raises:
        ValueError: a part cannot be read; the error names its place.
        pickle.UnpicklingError: a part can only be read by executing code.
    """
    if type(value) is dict:
        return {key: with_tensors(inner, f"{name}.{key}") for key, inner in value.items()}
    if type(value) is list:
        return [with_tensors(inner, f"{name}.{i}") for i, inner in enumerate(value)]
    if not isinstance(value, Unread):
        return value
    try:
        return value.read()
    except Exception as error:
        kind = pickle.UnpicklingError if isinstance(error, pickle.UnpicklingError) else ValueError
        what = "tensor" if value.is_tensor else "value"
        raise kind(f"the {what} {name!r}: {error}") from error


def _values(folder: Path, index: Mapping[str, Any]) -> list[tuple[Key, Unread]]:
    """Return the keys and the place of each value.

    Raises:
        Exception: of many types, if the index is damaged or names the same bytes twice.
    """
    keys, described = index.get("planner_data") or {}, index["state_dict_metadata"]
    chunks: dict[str, list[Chunk]] = {}
    for place, stored in index["storage_data"].items():
        offset = place.state.get("offset")
        chunk = Chunk(
            file=_field(stored, "relative_path", str),
            first=_field(stored, "offset", int),
            num_bytes=_field(stored, "length", int),
            offset=() if offset is None else _sizes(offset),
            transforms=stored.state.get("transform_descriptors"),
        )
        chunks.setdefault(_field(place, "fqn", str), []).append(chunk)
    _check_apart([chunk for parts in chunks.values() for chunk in parts])
    found = []
    for name, parts in chunks.items():
        about = described[name]
        size = dtype = None
        if about.kind == (_METADATA, "TensorStorageMetadata"):
            size = _sizes(about.state["size"])
            dtype = about.state["properties"].state[0]
            if not isinstance(dtype, torch.dtype):
                raise ValueError(f"{_INDEX} has a tensor without a dtype")
        key = tuple(keys.get(name, (name,)))
        if not 0 < len(key) <= MAX_DEPTH or not all(type(part) in (str, int) for part in key):
            raise ValueError(f"{_INDEX} has invalid keys for a value")
        found.append((key, Unread(folder, tuple(parts), size, dtype)))
    return found


def _check_apart(chunks: list[Chunk]) -> None:
    """Refuse an index that uses the same bytes for several values."""
    end, last = 0, ""
    for chunk in sorted(chunks, key=lambda chunk: (chunk.file, chunk.first)):
        if chunk.file == last and chunk.first < end and chunk.num_bytes:
            raise ValueError(f"{_INDEX} names byte {chunk.first} of {last[:100]!r} twice")
        end, last = chunk.first + chunk.num_bytes, chunk.file


def _content(folder: Path, chunk: Chunk) -> bytes:
    """Return the bytes of a chunk, after checking the file's place and size."""
    if chunk.transforms:
        raise ValueError(f"DCP's extensions {chunk.transforms} are not supported")
    path = folder / chunk.file
    if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
        raise FileNotFoundError(f"{_INDEX} names {chunk.file!r}, which is not a file in the folder")
    with open_regular(path) as file:
        size, end = size_of(file), chunk.first + chunk.num_bytes
        if not 0 <= chunk.first <= end <= size:
            raise ValueError(f"{path.name} has {size} bytes, but {_INDEX} names bytes up to {end}")
        file.seek(chunk.first)
        return file.read(chunk.num_bytes)


def _read_index(folder: Path) -> dict[str, Any]:
    """Return the fields of DCP's Metadata, with stand-ins for objects.

    Raises:
        Exception: of many types, if it is not a Metadata, or reading would execute code.
    """
    found = read_pickle(read_regular(folder / _INDEX, MAX_BYTES), _admitted)
    if not isinstance(found, Instance) or found.kind != (_METADATA, "Metadata"):
        raise ValueError(f"{_INDEX} does not hold a Metadata of DCP")
    fields: dict[str, Any] = found.state
    if not isinstance(fields["storage_data"], dict):
        raise ValueError(f"{_INDEX} does not name any files")
    return fields


def _field(instance: Any, name: str, kind: type) -> Any:
    """Return a field of a stand-in.

    Raises:
        ValueError: the field has another type.
    """
    value = instance.state[name]
    if type(value) is not kind:
        raise ValueError(f"{_INDEX} has a {name} that is not of type {kind.__name__}")
    return value


def _sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, tuple) or not all(type(n) is int and n >= 0 for n in value):
        raise ValueError(f"{_INDEX} has a size that is not a tuple of ints")
    return tuple(value)


def _admitted(module: str, name: str) -> Any:
    """Return the stand-in for a name in an index.

    Raises:
        pickle.UnpicklingError: the name is not of DCP's own classes.
    """
    module = "pathlib" if module == _PATHS_OF_313 else module
    value = getattr(torch, name, None) if module == "torch" else None
    if isinstance(value, torch.dtype):
        return value
    if (module, name) == ("torch", "Size"):
        return Function(lambda sizes=(): torch.Size(_sizes(tuple(sizes))))
    if (module, name) not in {*_CLASSES, *_PATHS, _LAYOUT}:
        raise pickle.UnpicklingError(
            f"{_INDEX} names {module}.{name}"[:200] + ", which is not executed"
        )
    return Function(lambda *arguments: Instance((module, name)))
