"""Reads and replaces the values of a folder of ``torch.distributed.checkpoint`` (DCP).

DCP itself executes pickles when it reads; here the folder's index may name DCP's own classes only,
and each value is read as weights only. Most tensors are those of a model, so a tensor is read where
it is asked for.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

Key = tuple[str | int, ...]
"""Keys that lead to a value in nested ones."""

_INDEX = ".metadata"
_CHANGED = "__changed_values.distcp"
_METADATA = "torch.distributed.checkpoint.metadata"
_ALLOWED = {
    *((_METADATA, name) for name in ("Metadata", "MetadataIndex", "StorageMeta")),
    *((_METADATA, name) for name in ("BytesStorageMetadata", "TensorStorageMetadata")),
    *((_METADATA, name) for name in ("ChunkStorageMetadata", "TensorProperties")),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("pathlib", "PosixPath"),
    ("pathlib", "WindowsPath"),
}
"""One by one: the module also holds ``dataclass``, which executes the text that it is given."""
_PATHS_OF_313 = "pathlib._local"
"""Where Python 3.13, and no other, says that ``pathlib``'s classes are."""


@dataclass(frozen=True)
class Unread:
    """What :func:`read_values` leaves out: a tensor, or a value that cannot be read."""

    name: str
    """As DCP names it: keys joined by dots."""
    folder: Path
    chunks: tuple[tuple[Any, Any], ...]
    """DCP's index and place of each chunk of a tensor; one of another value."""
    metadata: Any
    """DCP's description of the value."""

    @property
    def is_tensor(self) -> bool:
        """Whether DCP keeps it as a tensor."""
        return isinstance(self.metadata, TensorStorageMetadata)

    def content(self) -> bytes:
        """Return the bytes of the first chunk."""
        return _content(self.folder, self.chunks[0][1])

    def read(self) -> Any:
        """Read the value.

        Raises:
            Exception: of many types, if a file is missing or damaged, or the value needs code to be
                executed.
        """
        if not self.is_tensor:
            return _loaded(self.content())
        whole = torch.empty(self.metadata.size, dtype=self.metadata.properties.dtype)
        num_read = 0
        for index, stored in self.chunks:
            chunk = _loaded(_content(self.folder, stored))
            part = whole
            for dim, start in enumerate(index.offset or ()):
                part = part.narrow(dim, start, chunk.shape[dim])
            part.copy_(chunk)
            num_read += chunk.numel()
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
    index, tree = _read_index(folder), _TakenApart()
    for key, unread in _values(folder, index):
        inner = tree
        for name in key[:-1]:
            inner = inner.setdefault(name, _TakenApart())
        inner[key[-1]] = unread if unread.is_tensor else _value_of(unread)
    longest = len(index.state_dict_metadata)
    return {name: _with_lists(value, longest) for name, value in tree.items()}


class _TakenApart(dict[str | int, Any]):
    """A dict or list whose values DCP keeps one by one; in a list their keys are numbers."""


def _value_of(unread: Unread) -> Any:
    try:
        return unread.read()
    except Exception:  # whoever needs the value reads it again, and is told
        return unread


def _with_lists(value: Any, longest: int) -> Any:
    """Return the value with its lists again, none of which has more items than there are values."""
    if not isinstance(value, _TakenApart):
        return value
    inner = {name: _with_lists(each, longest) for name, each in value.items()}
    places = [name for name in inner if isinstance(name, int)]
    if not places or len(places) < len(inner):
        return inner
    if min(places) < 0 or max(places) >= longest:
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


def write_values(folder: Path, tree: dict[str | int, Any]) -> None:
    """Replace what is no tensor; the folder keeps the bytes of the former values, too.

    Args:
        folder: of the checkpoint, which is changed.
        tree: what :func:`read_values` returned, with other values under the same keys. Tensors in
            it have to be the saved ones.

    Raises:
        ValueError: the tree has other keys, or another tensor.
    """
    index = _read_index(folder)
    values = list(_values(folder, index))
    _check_keys({key for key, _ in values}, tree)
    with open(folder / _CHANGED, "wb") as file:
        for key, unread in values:
            value: Any = tree
            for name in key:
                value = value[name]
            if isinstance(value, Unread):
                continue
            if unread.is_tensor:
                if not (isinstance(value, torch.Tensor) and torch.equal(value, unread.read())):
                    raise ValueError(f"the tensor {unread.name!r} would be another one")
                continue
            content, offset = io.BytesIO(), file.tell()
            torch.save(value, content)
            file.write(content.getvalue())
            ((place, stored),) = unread.chunks
            length = file.tell() - offset
            index.storage_data[place] = type(stored)(_CHANGED, offset, length)
    (folder / _INDEX).write_bytes(pickle.dumps(index))


def _check_keys(keys: set[Key], tree: Any) -> None:
    """Refuse a tree that has other keys than the saved values have.

    Raises:
        ValueError: a key is lost or added.
    """
    inner = {key[:i] for key in keys for i in range(len(key))}
    found = set(_keys(tree, (), inner))
    lost, added = (
        [".".join(map(str, key)) for key in sorted(some, key=str)]
        for some in (keys - found, found - keys)
    )
    if lost or added:
        raise ValueError(
            f"the keys {lost} would be lost and {added} added, which a distributed checkpoint's "
            "index does not allow"
        )


def _keys(value: Any, key: Key, inner: set[Key]) -> Iterator[Key]:
    """The keys of all values, as deep as DCP has taken them apart."""
    if key not in inner:
        yield key
        return
    places = value if isinstance(value, dict) else dict(enumerate(value))
    for name, each in places.items():
        yield from _keys(each, (*key, name), inner)


def _values(folder: Path, index: Any) -> Iterator[tuple[Key, Unread]]:
    """Each value's keys, and where it is stored."""
    keys: dict[str, Any] = index.planner_data or {}
    chunks: dict[str, list[tuple[Any, Any]]] = {}
    for place, stored in index.storage_data.items():
        chunks.setdefault(place.fqn, []).append((place, stored))
    for name, places in chunks.items():
        metadata = index.state_dict_metadata[name]
        yield tuple(keys.get(name, (name,))), Unread(name, folder, tuple(places), metadata)


def _content(folder: Path, stored: Any) -> bytes:
    """Return bytes of a file in the folder that is long enough to hold them."""
    if stored.transform_descriptors:
        raise ValueError(f"DCP's extensions {stored.transform_descriptors} are not known here")
    path = folder / stored.relative_path
    if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
        raise FileNotFoundError(
            f"{_INDEX} names {str(stored.relative_path)!r}, which is no file in it"
        )
    size, end = path.stat().st_size, stored.offset + stored.length
    if not 0 <= stored.offset <= end <= size:
        raise ValueError(f"{path.name} has {size} bytes, and {_INDEX} those up to {end}")
    with open(path, "rb") as file:
        file.seek(stored.offset)
        return file.read(stored.length)


def _loaded(content: bytes) -> Any:
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def _read_index(folder: Path) -> Any:
    with open(folder / _INDEX, "rb") as file:
        index = _Unpickler(file).load()
    if not isinstance(index, Metadata):
        raise ValueError(f"{_INDEX} holds a {type(index).__name__} and not DCP's Metadata")
    return index


class _Unpickler(pickle.Unpickler):
    """Unpickles an index that names nothing but what DCP puts there."""

    def find_class(self, module: str, name: str) -> Any:
        module = "pathlib" if module == _PATHS_OF_313 else module
        is_type = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not (is_type or (module, name) in _ALLOWED):
            raise pickle.UnpicklingError(f"{_INDEX} names {module}.{name}, which is not executed")
        return super().find_class(module, name)
