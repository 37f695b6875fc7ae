"""Reads pickles of plain values and tensors, in which nothing is executed.

``torch.load(weights_only=True)`` does so for protocol 2 alone; ``pickle.dumps`` writes later ones.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from stateful_gpu_loader.tools import torch_file
from stateful_gpu_loader.tools.pickle_machine import MAX_BYTES, Function, checked_keys, read_pickle


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
    return read_pickle(content, _admitted)


def _admitted(module: str, name: str) -> Function:
    if (module, name) not in _ADMITTED:
        raise pickle.UnpicklingError(f"it names {module}.{name}"[:200] + ", which is not executed")
    return Function(_ADMITTED[module, name])


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *more: Any) -> torch.Tensor:
    """Return a tensor that lies within its storage."""
    if not isinstance(storage, torch.TypedStorage):
        raise ValueError("a tensor has no numbers")
    num_bytes = storage._untyped_storage.nbytes()
    torch_file.check_view(num_bytes, storage._element_size(), offset, size, stride)
    tensor: torch.Tensor = torch._utils._rebuild_tensor_v2(storage, offset, size, stride, *more)
    return tensor


def _dict(items: Any = ()) -> OrderedDict[Any, Any]:
    pairs = list(items)
    keys = checked_keys(key for key, _ in pairs)
    return OrderedDict(zip(keys, (value for _, value in pairs), strict=True))


def _no_bytes() -> bytes:
    """Return bytes of length 0, as protocols 0 to 2 write them."""
    return b""


_ADMITTED: dict[tuple[str, str], Callable[..., Any]] = {
    ("builtins", "bytes"): _no_bytes,
    ("_codecs", "encode"): torch_file.encoded,
    ("collections", "OrderedDict"): _dict,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch.storage", "_load_from_bytes"): torch_file.load,
}
"""What a pickle of plain values and tensors names; the last two make a tensor of its numbers."""
