"""Reads the values in a folder of ``torch.distributed.checkpoint`` (DCP).

DCP itself executes pickles when it reads. Here the folder's index is read with stand-ins in the
place of DCP's own classes, and may name no other; each value is read as weights only. Most tensors
are those of a model, so a tensor is read where it is asked for.
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
"""Keys that lead to a value in nested ones."""

_INDEX = ".metadata"
_MOST_ITEMS = 1 << 20
"""Most items of all lists, where fewer values than that are saved."""
_METADATA = "torch.distributed.checkpoint.metadata"
_CLASSES = {
    *((_METADATA, name) for name in ("Metadata", "MetadataIndex", "StorageMeta")),
    *((_METADATA, name) for name in ("BytesStorageMetadata", "TensorStorageMetadata")),
    *((_METADATA, name) for name in ("ChunkStorageMetadata", "TensorProperties")),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
}
"""DCP's classes, of which an index holds objects."""
_LAYOUT = ("torch.serialization", "_get_layout")
_PATHS = {("pathlib", "PosixPath"), ("pathlib", "WindowsPath")}
_PATHS_OF_313 = "pathlib._local"
"""Where Python 3.13, and no other, says that ``pathlib``'s classes are."""


@dataclass(frozen=True)
class Chunk:
    """Place of a value, or of a part of a tensor."""

    file: str
    """Path in the folder."""
    first: int
    """First byte in the file."""
    num_bytes: int
    offset: tuple[int, ...]
    """Place of the part in the tensor."""
    transforms: Any
    """DCP's extensions that changed the bytes; None or empty if there are none."""


@dataclass(frozen=True)
class Unread:
    """What :func:`read_values` leaves out: a tensor, or a value that cannot be read."""

    folder: Path
    chunks: tuple[Chunk, ...]
    """Chunks of a tensor; one of another value."""
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
            Exception: of many types, if a file is missing or damaged, or the value needs code to be
                executed.
        """
        if self.size is None or self.dtype is None:
            return torch_file.load(self.content())
        claimed = torch.Size(self.size).numel() * self.dtype.itemsize
        stored = sum(chunk.num_bytes for chunk in self.chunks)
        if claimed > stored:
            raise ValueError(f"it claims {claimed} bytes, and {stored} are stored")
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
            raise ValueError(f"{num_read} of its {whole.numel()} numbers are stored")
        return whole


def is_one(folder: Path) -> bool:
    """Whether a folder is a distributed checkpoint."""
    return (folder / _INDEX).is_file()


def read_values(folder: Path) -> dict[str | int, Any]:
    """Return what was saved, nested as it was, with :class:`Unread` in the place of each tensor.

    Raises:
        Exception: of many types, if the index is missing, damaged, or needs code to be executed.
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
    """A dict or list whose values DCP keeps one by one; in a list their keys are numbers."""


def _value_of(unread: Unread) -> Any:
    try:
        return unread.read()
    except Exception:  # whoever needs the value reads it again, and is told
        return unread


class _Lists:
    """Makes lists again of what DCP has taken apart.

    A list has as many items as its last place says, so all lists together are bounded.
    """

    def __init__(self, num_values: int) -> None:
        self._num_values = num_values
        self._left = max(num_values, _MOST_ITEMS)

    def joined(self, value: Any) -> Any:
        """Return a value with the lists inside it."""
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
    """Return the value with all that :func:`read_values` left out inside it.

    Args:
        value: a dict or list of :func:`read_values`, or anything else, which is returned.
        name: its name, for an error.

    Raises:
        ValueError: something cannot be read; its place is named.
        pickle.UnpicklingError: the same, because code would have to be executed.
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
    """Return each value's keys, and where it is stored.

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
                raise ValueError(f"{_INDEX} has a tensor of no dtype")
        key = tuple(keys.get(name, (name,)))
        if not 0 < len(key) <= MAX_DEPTH or not all(type(part) in (str, int) for part in key):
            raise ValueError(f"{_INDEX} names a value by keys that lead nowhere")
        found.append((key, Unread(folder, tuple(parts), size, dtype)))
    return found


def _check_apart(chunks: list[Chunk]) -> None:
    """Refuse an index that names the same bytes many times, each time as another value."""
    end, last = 0, ""
    for chunk in sorted(chunks, key=lambda chunk: (chunk.file, chunk.first)):
        if chunk.file == last and chunk.first < end and chunk.num_bytes:
            raise ValueError(f"{_INDEX} names byte {chunk.first} of {last[:100]!r} twice")
        end, last = chunk.first + chunk.num_bytes, chunk.file


def _content(folder: Path, chunk: Chunk) -> bytes:
    """Return bytes of a file in the folder that is long enough to hold them."""
    if chunk.transforms:
        raise ValueError(f"DCP's extensions {chunk.transforms} are not known here")
    path = folder / chunk.file
    if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
        raise FileNotFoundError(f"{_INDEX} names {chunk.file!r}, which is no file in it")
    with open_regular(path) as file:
        size, end = size_of(file), chunk.first + chunk.num_bytes
        if not 0 <= chunk.first <= end <= size:
            raise ValueError(f"{path.name} has {size} bytes, and {_INDEX} those up to {end}")
        file.seek(chunk.first)
        return file.read(chunk.num_bytes)


def _read_index(folder: Path) -> dict[str, Any]:
    """Return the fields of DCP's Metadata, in which stand-ins lie.

    Raises:
        Exception: of many types, if it is no Metadata, or needs code to be executed.
    """
    found = read_pickle(read_regular(folder / _INDEX, MAX_BYTES), _admitted)
    if not isinstance(found, Instance) or found.kind != (_METADATA, "Metadata"):
        raise ValueError(f"{_INDEX} holds no Metadata of DCP")
    fields: dict[str, Any] = found.state
    if not isinstance(fields["storage_data"], dict):
        raise ValueError(f"{_INDEX} names no files")
    return fields


def _field(instance: Any, name: str, kind: type) -> Any:
    """Return a field of a stand-in.

    Raises:
        ValueError: it is of another type.
    """
    value = instance.state[name]
    if type(value) is not kind:
        raise ValueError(f"{_INDEX} has a {name} that is no {kind.__name__}")
    return value


def _sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, tuple) or not all(type(n) is int and n >= 0 for n in value):
        raise ValueError(f"{_INDEX} has a size that is none")
    return tuple(value)


def _admitted(module: str, name: str) -> Any:
    """Stand-in for what an index names: DCP's own classes, and nothing else.

    Raises:
        pickle.UnpicklingError: it names something else.
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
