"""Reads and replaces the values of a folder of ``torch.distributed.checkpoint`` (DCP).

Tensors are left alone. DCP itself executes pickles when it reads; here the folder's index may name
DCP's own classes only, and each value is read as weights only.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

Key = tuple[str | int, ...]
"""Keys that lead to a value in nested ones."""

_INDEX = ".metadata"
_CHANGED = "__changed_values.distcp"
_METADATA = "torch.distributed.checkpoint.metadata"
_ALLOWED = {
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("pathlib", "PosixPath"),
    ("pathlib", "WindowsPath"),
}
_PATHS_OF_313 = "pathlib._local"
"""Where Python 3.13, and no other, says that ``pathlib``'s classes are."""


def is_one(folder: Path) -> bool:
    """Whether a folder is a distributed checkpoint."""
    return (folder / _INDEX).is_file()


def read_values(folder: Path) -> dict[str | int, Any]:
    """Return what was saved, nested as it was, without its tensors.

    Raises:
        Exception: of many types, if a file is missing or damaged, or a value needs code to be
            executed.
    """
    index = _read_index(folder)
    tree: dict[str | int, Any] = {}
    for place, key in _places(index):
        content = _read(folder, index.storage_data[place])
        inner = tree
        for name in key[:-1]:
            inner = inner.setdefault(name, {})
        inner[key[-1]] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    longest = len(index.state_dict_metadata)
    return {name: _with_lists(value, longest) for name, value in tree.items()}


def _read(folder: Path, info: Any) -> bytes:
    """The bytes of a value, of a file in the folder that is long enough to hold them."""
    path = folder / info.relative_path
    if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
        raise ValueError(f"{_INDEX} names {str(info.relative_path)!r}, which is no file in it")
    size = path.stat().st_size
    if not 0 <= info.offset <= info.offset + info.length <= size:
        end = info.offset + info.length
        raise ValueError(f"{path.name} has {size} bytes, and {_INDEX} those up to {end}")
    with open(path, "rb") as file:
        file.seek(info.offset)
        return file.read(info.length)


def _with_lists(value: Any, longest: int) -> Any:
    """The value with its lists again: DCP's keys are text but for the places in a list.

    No list has more items than there are values and tensors, the latter of which are left out.
    """
    if not isinstance(value, dict):
        return value
    inner = {name: _with_lists(each, longest) for name, each in value.items()}
    if not inner or any(type(name) is not int for name in inner):
        return inner
    if min(inner) < 0 or max(inner) >= longest:
        raise ValueError(f"{_INDEX} has places {min(inner)} to {max(inner)} in a list")
    return [inner.get(i) for i in range(max(inner) + 1)]


def write_values(folder: Path, tree: dict[str | int, Any]) -> None:
    """Replace what is no tensor; the folder keeps the bytes of the former values, too.

    Args:
        folder: of the checkpoint, which is changed.
        tree: what :func:`read_values` returned, with other values under the same keys.
    """
    index = _read_index(folder)
    with open(folder / _CHANGED, "wb") as file:
        for place, key in _places(index):
            value: Any = tree
            for name in key:
                value = value[name]
            content, offset = io.BytesIO(), file.tell()
            torch.save(value, content)
            file.write(content.getvalue())
            index.storage_data[place] = replace(
                index.storage_data[place],
                relative_path=_CHANGED,
                offset=offset,
                length=file.tell() - offset,
            )
    (folder / _INDEX).write_bytes(pickle.dumps(index))


def _places(index: Any) -> list[tuple[Any, Key]]:
    """The places of the values that are no tensors, with their keys."""
    keys: dict[str, Any] = index.planner_data or {}
    return [
        (place, tuple(keys.get(place.fqn, (place.fqn,))))
        for place in index.storage_data
        if isinstance(index.state_dict_metadata[place.fqn], BytesStorageMetadata)
    ]


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
        is_of_dcp = module == _METADATA and "." not in name
        if not (is_type or is_of_dcp or (module, name) in _ALLOWED):
            raise pickle.UnpicklingError(f"{_INDEX} names {module}.{name}, which is not executed")
        return super().find_class(module, name)
