"""Reads files of ``torch.save``, and plain pickles: sizes, calls and keys are checked before.

``torch.load(weights_only=True)`` executes no code of a file. But it reserves as much memory as the
file asks for, unpacks what is compressed, and hashes nested keys in exponential time. So the file's
pickle is gone through first, with stand-ins for tensors, and nothing but a sound one is loaded.

Of pickles by themselves it reads those of protocol 2 alone; ``pickle.dumps`` writes later ones. So
they are read here without it.
"""

from __future__ import annotations

import importlib
import io
import pickle
import struct
import zipfile
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
"""Size of the largest directory of a zip that is read: some 800,000 entries."""
_END, _END_64, _LOCATOR_64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_NUM_END, _NUM_LOCATOR, _NUM_END_64 = 22, 20, 56
_MAGIC = 0x1950A86A20F9469CFC6C
"""First value of a file that is no zip, as torch before 1.6 wrote it."""


@dataclass(frozen=True)
class Archive:
    """Zip of ``torch.save``, whose entries fit into the file."""

    pickle: bytes
    """Pickle of all values but the numbers of tensors; empty if this is no file of torch."""
    folder: str
    """Folder of the pickle, in lower case."""
    sizes: dict[str, int]
    """Number of bytes in each entry, by its name in lower case. torch ignores the case."""

    @classmethod
    def of(cls, file: BinaryIO, num_bytes: int) -> Archive:
        """Read the directory and the pickle of an open file.

        Raises:
            Exception: of many types, if the zip is damaged, or an entry is compressed or exceeds
                the file.
        """
        first = _directory(file, num_bytes)
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            sizes = {entry.orig_filename.lower(): entry.file_size for entry in entries}
            found = [one for one in entries if one.orig_filename.lower().endswith("/data.pkl")]
            if not found:
                return cls(b"", "", sizes)
            if archive.start_dir != first:
                raise ValueError("its zip has a directory at another place than it says")
            if len(sizes) < len(entries) or len(found) > 1:
                raise ValueError("its zip has two entries of the same name")
            for entry in entries:
                if (
                    entry.compress_type != zipfile.ZIP_STORED
                    or entry.compress_size != entry.file_size
                ):
                    raise ValueError(
                        f"its entry {entry.filename[:100]!r} is compressed, as torch never does it"
                    )
                if entry.header_offset + entry.file_size > first:
                    raise ValueError(f"its entry {entry.filename[:100]!r} lies outside the file")
            if (total := sum(sizes.values())) > num_bytes:
                raise ValueError(f"its entries claim {total} bytes of the {num_bytes} in the file")
            if found[0].file_size > MAX_BYTES:
                raise ValueError(
                    f"its pickle has {found[0].file_size} bytes, and {MAX_BYTES} are read"
                )
            name = found[0].orig_filename.lower()
            return cls(archive.read(found[0]), name.removesuffix("data.pkl"), sizes)

    def num_bytes_of(self, key: Any) -> int:
        """Return the number of bytes stored for a storage of this key."""
        return self.sizes.get(f"{self.folder}data/{key}".lower(), 0)


def load(content: bytes) -> Any:
    """Return the value of a file's content, on the CPU.

    Raises:
        pickle.UnpicklingError: code would have to be executed.
        Exception: of other types, if it is damaged, or claims more memory than it has bytes.
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
        pickle.UnpicklingError: code would have to be executed.
        ValueError: it is damaged, or claims more memory than it has bytes.
    """
    if file.read(2) == b"PK":
        archive = Archive.of(file, num_bytes)
        read_pickle(archive.pickle, _admitted, _Storages(archive, num_bytes).find)
        return
    file.seek(0)
    stream = Bounded(file, num_bytes)
    if read_pickle(stream, _nothing) != _MAGIC:
        raise ValueError("it does not begin as torch.save begins a file")
    for _ in ("version of the format", "facts about the machine"):
        read_pickle(stream, _nothing)
    read_pickle(stream, _admitted, _Storages(None, num_bytes).find)
    read_pickle(stream, _nothing)  # the keys of the storages, whose numbers follow


@dataclass(frozen=True, eq=False)
class _Storage:
    num_bytes: int
    item_bytes: int


class _Storages:
    """Storages that a pickle refers to, each as large as the file says."""

    def __init__(self, archive: Archive | None, num_bytes: int) -> None:
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
            raise ValueError("its pickle refers to a value that is no storage")
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
    """Refuse a tensor that reaches beyond its storage of ``num_bytes``.

    torch would enlarge the storage for it.

    Raises:
        ValueError: it does, or the numbers are no size.
    """
    if len(size) != len(stride):
        raise ValueError(f"a tensor has {len(size)} lengths and {len(stride)} strides")
    if not all(type(number) is int and number >= 0 for number in (offset, *size, *stride)):
        raise ValueError("a tensor has no size")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    end = (last + 1) * item_bytes
    if 0 not in size and end > num_bytes:
        raise ValueError(f"a tensor reaches to byte {end} of a storage of {num_bytes} bytes")


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
    """Stand-in for a tensor with attributes: a function, a class, arguments and the attributes."""
    if not isinstance(function, Function):
        raise pickle.UnpicklingError("it calls what it does not name, which is not executed")
    return function.call(*given[1])


def _bytes_like(*given: Any) -> Any:
    """The argument of ``bytearray``; a number would reserve as many bytes."""
    if given and not isinstance(given[0], bytes | bytearray | str):
        raise ValueError("its pickle has bytes without content")
    return bytearray(*given)


def _encoded(text: str, encoding: str) -> bytes:
    """Return bytes as protocols 0 to 2 write them; other encodings would import modules."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes are encoded as {encoding!r} and not as latin1")
    return text.encode("latin1")


def _size(items: Any = ()) -> tuple[int, ...]:
    if type(items) not in (tuple, list) or not all(type(n) is int for n in items):
        raise ValueError("its pickle has a size that is none")
    return tuple(items)


def _empty_tensor(*given: Any) -> Instance:
    """Refuse to call torch.Tensor, which a pickle of today names as a class alone."""
    raise ValueError("its pickle creates a tensor without numbers")


def _ordered_dict(items: Any = ()) -> OrderedDict[Any, Any]:
    pairs = list(items.items() if isinstance(items, dict) else items)
    keys = checked_keys(key for key, _ in pairs)
    return OrderedDict(zip(keys, (value for _, value in pairs), strict=True))


_CALLS: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): _ordered_dict,
    ("collections", "Counter"): lambda items=(): Counter(_ordered_dict(items)),
    ("builtins", "set"): lambda items=(): set(checked_keys(items)),
    ("builtins", "bytearray"): _bytes_like,
    ("builtins", "complex"): complex,
    ("_codecs", "encode"): _encoded,
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
"""Functions that files of torch.save name, and those that are called in their place."""


def _admitted(module: str, name: str) -> Any:
    """Stand-in for what ``torch.load(weights_only=True)`` admits."""
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
    """Names that this program, or torch.distributed for its tensors, has declared safe."""
    importlib.import_module("torch.distributed.tensor")  # takes a second, and few files need it
    return {
        one[1] if isinstance(one, tuple) else f"{one.__module__}.{one.__qualname__}"
        for one in torch.serialization.get_safe_globals()
    }


def _nothing(module: str, name: str) -> Any:
    shown = f"{module}.{name}"[:200]
    raise pickle.UnpicklingError(f"it names {shown}, which is not executed")


def _directory(file: BinaryIO, num_bytes: int) -> int:
    """Return the place of a zip's directory, which ends where the record of its end begins.

    zipfile and torch would search for another one.
    """
    file.seek(max(0, num_bytes - _NUM_END))
    end = file.read(_NUM_END)
    if len(end) < _NUM_END or end[:4] != _END:
        raise ValueError("its zip does not end with a directory: it is cut or no file of torch")
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
        raise ValueError("its zip has a directory at another place than it says")
    if size > _MAX_DIRECTORY:
        raise ValueError(f"its zip has a directory of {size} bytes; {_MAX_DIRECTORY} are read")
    return int(first)


def load_plain(content: bytes) -> Any:
    """Return the value in a pickle of any protocol.

    Raises:
        pickle.UnpicklingError: it names something that would have to be executed.
        Exception: of other types, if it is damaged or too large.

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


def _plain_admitted(module: str, name: str) -> Any:
    known = (module, name) in _PLAIN_CALLS
    return Function(_PLAIN_CALLS[module, name]) if known else _nothing(module, name)


def _plain_tensor(storage: Any, offset: Any, size: Any, stride: Any, *more: Any) -> torch.Tensor:
    """Return a tensor that lies within its storage."""
    if not isinstance(storage, torch.TypedStorage):
        raise ValueError("a tensor has no numbers")
    num_bytes = storage._untyped_storage.nbytes()
    check_view(num_bytes, storage._element_size(), offset, size, stride)
    tensor: torch.Tensor = torch._utils._rebuild_tensor_v2(storage, offset, size, stride, *more)
    return tensor


_PLAIN_CALLS: dict[tuple[str, str], Callable[..., Any]] = {
    ("builtins", "bytes"): lambda: b"",  # as protocols 0 to 2 write bytes of length 0
    ("_codecs", "encode"): _encoded,
    ("collections", "OrderedDict"): _ordered_dict,
    ("torch._utils", "_rebuild_tensor_v2"): _plain_tensor,
    ("torch.storage", "_load_from_bytes"): load,
}
"""What a pickle of plain values and tensors names; the last two make a tensor of its numbers."""
