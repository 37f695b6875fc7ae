"""Reads pickles of plain values and tensors, in which nothing is executed.

``torch.load(weights_only=True)`` does so for protocol 2 alone; ``pickle.dumps`` writes later ones.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections import OrderedDict
from typing import Any

import torch


def load_plain(content: bytes) -> Any:
    """Return the value in a pickle of any protocol.

    Raises:
        pickle.UnpicklingError: it names something that would have to be executed.
        Exception: of other types, if it is damaged.

    >>> load_plain(pickle.dumps({"next": 3, "seen": [1, 2], "drawn": torch.zeros(2)}))
    {'next': 3, 'seen': [1, 2], 'drawn': tensor([0., 0.])}
    >>> load_plain(pickle.dumps(print))
    Traceback (most recent call last):
        ...
    _pickle.UnpicklingError: it names builtins.print, which is not executed
    """
    # Plain values have no attributes: what sets some would change the functions below.
    if any(opcode.name == "BUILD" for opcode, _, _ in pickletools.genops(content)):
        raise pickle.UnpicklingError("it sets an object's attributes, which is not executed")
    return _Unpickler(io.BytesIO(content)).load()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not executed")
        return _ADMITTED[module, name]


def _bytes(text: str, encoding: str) -> bytes:
    """Bytes as protocols 0 to 2 write them; other encodings would import modules."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes are encoded as {encoding!r} and not as latin1")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    """As protocols 0 to 2 write bytes of length 0."""
    return b""


def _storage(content: bytes) -> Any:
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


_ADMITTED = {
    ("__builtin__", "bytes"): _no_bytes,
    ("_codecs", "encode"): _bytes,
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch.storage", "_load_from_bytes"): _storage,
}
"""What a pickle of plain values and tensors names; the last two make a tensor of its numbers."""
