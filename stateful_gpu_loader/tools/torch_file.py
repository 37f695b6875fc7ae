"""Reads files of ``torch.save``, and plain pickles, after checking their sizes, calls and keys.

``torch.load(weights_only=True)`` executes no code in a file. But it reserves as much memory as the
file claims, unpacks compressed data, and hashes nested keys in exponential time. So the pickle is
first checked with stand-ins for tensors.

``torch.load`` reads plain pickles of protocol 2 only. So plain pickles are read here without it.
"""

from __future__ import annotations

import importlib
import io
import os
import pickle
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch

from stateful_gpu_loader.tools.pickle_machine import (
    MAX_BYTES,
    Bounded,
    Function,
    Instance,
    checked_keys,
    read_pickle,
)

_MAX_DIRECTORY = 64 << 20
"""Largest size of a zip's directory that is read: about 800,000 entries."""
_END, _END_64, _LOCATOR_64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_ENTRY, _LOCAL = b"PK\x01\x02", b"PK\x03\x04"
_NUM_END, _NUM_LOCATOR, _NUM_END_64, _NUM_ENTRY, _NUM_LOCAL = 22, 20, 56, 46, 30
_IS_IN_64 = 0xFFFFFFFF
_MAGIC = 0x1950A86A20F9469CFC6C
"""First value of a file of torch before 1.6, not a zip."""


@dataclass(frozen=True)
class Entry:
    """One file inside a zip."""

    name: str
    method: int
    """Method of compression; 0 for none."""
    stored: int
    """Number of bytes in the zip."""
    size: int
    """Number of unpacked bytes."""
    header: int
    """Position of the local header before the bytes."""


@dataclass(frozen=True)
class Zip:
    """Directory of a zip of ``torch.save``, whose entries fit into the file."""

    entries: dict[str, Entry]
    """Entries by name in lower case."""
    pickle: Entry | None
    """Entry with all values but tensors' numbers; None if torch did not write the file."""

    @classmethod
    def of(cls, file: BinaryIO, num_bytes: int) -> Zip:
        """Read the directory of an open file.

        Raises:
            ValueError: the directory is damaged, or an entry is compressed or exceeds the file.
        """
        entries = list(_entries(file, num_bytes))
        # torch ignores the case of an entry's name.
        pickles = [entry for entry in entries if entry.name.lower().endswith("/data.pkl")]
        found = {entry.name.lower(): entry for entry in entries}
        if not pickles:
            return cls(found, None)
        if len(found) < len(entries) or len(pickles) > 1:
            raise ValueError("its zip has two entries of the same name")
        packed = next((one for one in entries if one.method or one.stored != one.size), None)
        if packed is not None:
            raise ValueError(f"its entry {packed.name!r} is compressed, which torch never does")
        if (total := sum(entry.size for entry in entries)) > num_bytes:
            raise ValueError(f"its entries claim {total} bytes of the {num_bytes} in the file")
        if pickles[0].size > MAX_BYTES:
            raise ValueError(f"its pickle has {pickles[0].size} bytes, and {MAX_BYTES} are read")
        return cls(found, pickles[0])

    def read_pickle(self, file: BinaryIO) -> bytes:
        """Return the bytes of the pickle; empty if there is no pickle."""
        if self.pickle is None:
            return b""
        file.seek(self.pickle.header)
        head = file.read(_NUM_LOCAL)
        if head[:4] != _LOCAL:
            raise ValueError(f"its entry {self.pickle.name!r} has no header")
        file.seek(sum(struct.unpack("<HH", head[26:30])), os.SEEK_CUR)
        content = file.read(self.pickle.size)
        if len(content) < self.pickle.size:
            raise ValueError(f"its entry {self.pickle.name!r} is cut")
        return content

    def num_bytes_of(self, key: Any) -> int:
        """Return the number of bytes stored for the storage with this key."""
        folder = "" if self.pickle is None else self.pickle.name.lower().removesuffix("data.pkl")
        entry = self.entries.get(f"{folder}data/{key}".lower())
        return 0 if entry is None else entry.size


def load(content: bytes) -> Any:
    """Return the value of a file's content, on the CPU.

    Raises:
        pickle.UnpicklingError: loading would execute code.
        Exception: of other types, if the content is damaged, or claims more memory than it has
            bytes.
    """
    file = io.BytesIO(content)
    check(file, len(content))
    file.seek(0)
    return torch.load(file, map_location="cpu", weights_only=True)


def check(file: BinaryIO, num_bytes: int) -> None:
    """Refuse a file of ``torch.save`` that cannot be loaded safely.

    Args:
        file: the open file, at its beginning.
        num_bytes: size of the file.

    Raises:
        pickle.UnpicklingError: loading would execute code.
        ValueError: the file is damaged, or claims more memory than it has bytes.
    """
    if file.read(2) == b"PK":
        archive = Zip.of(file, num_bytes)
        read_pickle(archive.read_pickle(file), _admitted, _Storages(archive, num_bytes).find)
        return
    file.seek(0)
    stream = Bounded(file, num_bytes)
    if read_pickle(stream, _nothing) != _MAGIC:
        raise ValueError("it does not begin like a file of torch.save")
    for _ in ("version of the format", "facts about the machine"):
        read_pickle(stream, _nothing)
    read_pickle(stream, _admitted, _Storages(None, num_bytes).find)
    read_pickle(stream, _nothing)  # the keys of the storages; their numbers follow


@dataclass(frozen=True, eq=False)
class _Storage:
    num_bytes: int
    item_bytes: int


class _Storages:
    """Storages that a pickle refers to, checked against the size of the file."""

    def __init__(self, archive: Zip | None, num_bytes: int) -> None:
        self._archive = archive
        self._left = num_bytes
        self._found: dict[str, int] = {}

    def find(self, name: Any) -> _Storage:
        """Return the storage of a persistent id.

        Raises:
            ValueError: the id is damaged, or the storage claims more than the file holds.
        """
        kind, key, number = name[1], str(name[2]), name[4]
        if name[0] != "storage" or not isinstance(kind, _Kind) or type(number) is not int:
            raise ValueError("its pickle refers to a value that is not a storage")
        claimed = number * kind.item_bytes
        if self._archive is not None:
            held = self._archive.num_bytes_of(key)
        else:
            held = self._left + self._found.get(key, 0)
        if not 0 <= claimed <= held:
            raise ValueError(f"its storage {key[:100]!r} claims {claimed} bytes of {held}")
        if self._archive is None:
            self._left += self._found.get(key, 0) - claimed
            self._found[key] = claimed
        return _Storage(claimed, kind.item_bytes)


@dataclass(frozen=True, eq=False)
class _Kind:
    """Stand-in for a class of storages."""

    item_bytes: int


_KINDS = {
    **dict.fromkeys(("UntypedStorage", "TypedStorage", "ByteStorage", "CharStorage"), 1),
    **dict.fromkeys(("BoolStorage", "QInt8Storage", "QUInt8Storage"), 1),
    **dict.fromkeys(("QUInt4x2Storage", "QUInt2x4Storage"), 1),
    **dict.fromkeys(("ShortStorage", "HalfStorage", "BFloat16Storage"), 2),
    **dict.fromkeys(("IntStorage", "FloatStorage", "QInt32Storage"), 4),
    **dict.fromkeys(("LongStorage", "DoubleStorage", "ComplexFloatStorage"), 8),
    "ComplexDoubleStorage": 16,
}


def check_view(num_bytes: int, item_bytes: int, offset: Any, size: Any, stride: Any) -> None:
    """Refuse a tensor that extends beyond its storage of ``num_bytes``.

    torch would enlarge the storage.

    Raises:
        ValueError: the tensor is too large, or the numbers are not a size.
    """
    if len(size) != len(stride):
        raise ValueError(f"a tensor has {len(size)} lengths and {len(stride)} strides")
    if not all(type(number) is int and number >= 0 for number in (offset, *size, *stride)):
        raise ValueError("a tensor has no size")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    end = (last + 1) * item_bytes
    if 0 not in size and end > num_bytes:
        raise ValueError(f"a tensor extends to byte {end} of a storage of {num_bytes} bytes")


def _view(storage: Any, item_bytes: int, offset: Any, size: Any, stride: Any) -> Instance:
    if not isinstance(storage, _Storage):
        raise ValueError("a tensor has no numbers")
    check_view(storage.num_bytes, item_bytes, offset, size, stride)
    return Instance("tensor")


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *more: Any) -> Instance:
    return _view(storage, storage.item_bytes, offset, size, stride)


def _tensor_of_dtype(*given: Any) -> Instance:
    storage, offset, size, stride, dtype = *given[:4], given[6]
    return _view(storage, dtype.itemsize, offset, size, stride)


def _quantized(storage: Any, offset: Any, size: Any, stride: Any, *more: Any) -> Instance:
    num_items = 1
    for length in size:
        num_items *= length
    if num_items * storage.item_bytes > storage.num_bytes:
        raise ValueError("a quantized tensor is larger than its storage")
    return _view(storage, storage.item_bytes, offset, size, stride)


def _of_type(function: Any, *given: Any) -> Any:
    """Return the stand-in for a tensor with attributes, made by a function with arguments."""
    if not isinstance(function, Function):
        raise pickle.UnpicklingError("it calls a function without a name, which is not executed")
    return function.call(*given[1])


def _bytes_like(*given: Any) -> Any:
    """Return a bytearray of some content, not of a size."""
    if given and not isinstance(given[0], bytes | bytearray | str):
        raise ValueError("its pickle has bytes without content")
    return bytearray(*given)


def encoded(text: str, encoding: str) -> bytes:
    """Decode bytes of protocols 0 to 2; other encodings than latin1 would import modules."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes are encoded as {encoding!r} and not as latin1")
    return text.encode("latin1")


def _size(items: Any = ()) -> tuple[int, ...]:
    if type(items) not in (tuple, list) or not all(type(n) is int for n in items):
        raise ValueError("its pickle has a size that is not a tuple of ints")
    return tuple(items)


def _empty_tensor(*given: Any) -> Instance:
    """Refuse to call torch.Tensor, which new pickles only name as a class."""
    raise ValueError("its pickle creates a tensor without numbers")


_CALLS: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): lambda items=(): OrderedDict(_pairs(items)),
    ("collections", "Counter"): lambda items=(): Counter(dict(_pairs(items))),
    ("builtins", "set"): lambda items=(): set(checked_keys(items)),
    ("builtins", "bytearray"): _bytes_like,
    ("builtins", "complex"): complex,
    ("_codecs", "encode"): encoded,
    ("torch", "Size"): _size,
    ("torch", "Tensor"): _empty_tensor,
    ("torch", "device"): lambda *given: Instance("device"),
    ("torch.serialization", "_get_layout"): lambda name: Instance("layout"),
    ("torch.nn.parameter", "Parameter"): lambda *given: Instance("tensor"),
    ("torch._tensor", "_rebuild_from_type_v2"): _of_type,
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor_of_dtype,
    ("torch._utils", "_rebuild_qtensor"): _quantized,
    **{
        ("torch._utils", name): lambda *given: Instance("tensor")
        for name in (
            *("_rebuild_parameter", "_rebuild_parameter_with_state", "_rebuild_sparse_tensor"),
            *("_rebuild_meta_tensor_no_storage", "_rebuild_wrapper_subclass"),
            *("_rebuild_device_tensor_from_numpy", "_rebuild_device_tensor_from_cpu_tensor"),
        )
    },
}
"""Stand-ins for the functions named in files of torch.save."""


def _pairs(items: Any) -> list[tuple[Any, Any]]:
    pairs = list(items.items() if isinstance(items, dict) else items)
    keys = checked_keys(key for key, _ in pairs)
    return list(zip(keys, (value for _, value in pairs), strict=True))


def _admitted(module: str, name: str) -> Any:
    """Return the stand-in for a global that ``torch.load(weights_only=True)`` admits."""
    module = "torch._tensor" if module == "torch.tensor" else module
    if (module, name) in _CALLS:
        return Function(_CALLS[module, name])
    if module.startswith("torch") and name in _KINDS:
        return _Kind(_KINDS[name])
    if module == "torch" and isinstance(value := getattr(torch, name, None), torch.dtype):
        return value
    if module == "torch" and isinstance(value, torch.qscheme):
        return Instance("scheme")
    if f"{module}.{name}" in _registered():
        return Function(lambda *given: Instance(name))
    return _nothing(module, name)


def _registered() -> set[str]:
    """Return the names that this program, or torch.distributed, has declared safe."""
    importlib.import_module("torch.distributed.tensor")  # takes a second, and few files need it
    return {
        one[1] if isinstance(one, tuple) else f"{one.__module__}.{one.__qualname__}"
        for one in torch.serialization.get_safe_globals()
    }


def _nothing(module: str, name: str) -> Any:
    shown = f"{module}.{name}"[:200]
    raise pickle.UnpicklingError(f"it names {shown}, which is not executed")


def _entries(file: BinaryIO, num_bytes: int) -> list[Entry]:
    """Return the entries of a zip's directory."""
    first, size = _directory(file, num_bytes)
    file.seek(first)
    content = file.read(size)
    found, place = [], 0
    while place < len(content):
        head = content[place : place + _NUM_ENTRY]
        if len(head) < _NUM_ENTRY or head[:4] != _ENTRY:
            raise ValueError("its zip has a damaged directory")
        (method,) = struct.unpack("<H", head[10:12])
        stored, unpacked = struct.unpack("<II", head[20:28])
        num_name, num_extra, num_comment = struct.unpack("<HHH", head[28:34])
        (header,) = struct.unpack("<I", head[42:46])
        place += _NUM_ENTRY
        name = content[place : place + num_name].decode("utf-8", "backslashreplace")
        extra = content[place + num_name : place + num_name + num_extra]
        unpacked, stored, header = _in_64_bits(extra, unpacked, stored, header)
        if header + stored > first:
            raise ValueError(f"its entry {name[:100]!r} lies outside the file")
        found.append(Entry(name, method, stored, unpacked, header))
        place += num_name + num_extra + num_comment
    return found


def _directory(file: BinaryIO, num_bytes: int) -> tuple[int, int]:
    """Return the position and size of a zip's directory."""
    file.seek(max(0, num_bytes - _NUM_END))
    end = file.read(_NUM_END)
    if len(end) < _NUM_END or end[:4] != _END:
        raise ValueError("its zip has no directory at the end: it is cut, or not a file of torch")
    size, first = struct.unpack("<II", end[12:20])
    last = num_bytes - _NUM_END
    file.seek(max(0, last - _NUM_LOCATOR))
    locator = file.read(_NUM_LOCATOR)
    if locator[:4] == _LOCATOR_64:
        (last,) = struct.unpack("<Q", locator[8:16])
        if last + _NUM_END_64 > num_bytes:
            raise ValueError("its zip has a damaged directory")
        file.seek(last)
        end = file.read(_NUM_END_64)
        size, first = struct.unpack("<QQ", end[40:56])
        if end[:4] != _END_64:
            raise ValueError("its zip has a damaged directory")
    if first + size != last:
        raise ValueError("its zip has its directory at another place than it claims")
    if size > _MAX_DIRECTORY:
        raise ValueError(f"its zip has a directory of {size} bytes; {_MAX_DIRECTORY} are read")
    return first, size


def _in_64_bits(extra: bytes, *numbers: int) -> tuple[int, ...]:
    """Return the numbers of an entry; 64-bit numbers are in an extra field."""
    place, long = 0, b""
    while place + 4 <= len(extra):
        kind, size = struct.unpack("<HH", extra[place : place + 4])
        if kind == 1:
            long = extra[place + 4 : place + 4 + size]
        place += 4 + size
    found = []
    for number in numbers:
        if number == _IS_IN_64:
            if len(long) < 8:
                raise ValueError("its zip has a damaged directory")
            (number,) = struct.unpack("<Q", long[:8])
            long = long[8:]
        found.append(number)
    return tuple(found)


def load_plain(content: bytes) -> Any:
    """Return the value in a pickle of any protocol.

    Raises:
        pickle.UnpicklingError: reading would execute code.
        Exception: of other types, if the pickle is damaged or too large.

    >>> load_plain(pickle.dumps({"next": 3, "seen": [1, 2], "drawn": torch.zeros(2)}))
    {'next': 3, 'seen': [1, 2], 'drawn': tensor([0., 0.])}
    >>> load_plain(pickle.dumps(print))
    Traceback (most recent call last):
        ...
    _pickle.UnpicklingError: it names builtins.print, which is not executed
    """
    if len(content) > MAX_BYTES:
        raise ValueError(f"its pickle has {len(content)} bytes, and {MAX_BYTES} are read")
    return read_pickle(content, _plain_admitted)


def _plain_admitted(module: str, name: str) -> Function:
    if (module, name) not in _ADMITTED:
        raise pickle.UnpicklingError(f"it names {module}.{name}"[:200] + ", which is not executed")
    return Function(_ADMITTED[module, name])


def _plain_tensor(storage: Any, offset: Any, size: Any, stride: Any, *more: Any) -> torch.Tensor:
    """Return a tensor, after checking that it lies within its storage."""
    if not isinstance(storage, torch.TypedStorage):
        raise ValueError("a tensor has no numbers")
    num_bytes = storage._untyped_storage.nbytes()
    check_view(num_bytes, storage._element_size(), offset, size, stride)
    tensor: torch.Tensor = torch._utils._rebuild_tensor_v2(storage, offset, size, stride, *more)
    return tensor


def _dict(items: Any = ()) -> OrderedDict[Any, Any]:
    pairs = list(items)
    keys = checked_keys(key for key, _ in pairs)
    return OrderedDict(zip(keys, (value for _, value in pairs), strict=True))


def _no_bytes() -> bytes:
    """Return b""; protocols 0 to 2 write it as a call without arguments."""
    return b""


_ADMITTED: dict[tuple[str, str], Callable[..., Any]] = {
    ("builtins", "bytes"): _no_bytes,
    ("_codecs", "encode"): encoded,
    ("collections", "OrderedDict"): _dict,
    ("torch._utils", "_rebuild_tensor_v2"): _plain_tensor,
    ("torch.storage", "_load_from_bytes"): load,
}
"""Functions for the names in a pickle of plain values and tensors."""
