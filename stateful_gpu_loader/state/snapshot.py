"""Frozen state: what a user's ``state_dict()`` returned, as bytes that nothing can change later.

A worker sends these bytes to the main process, which keeps them unread until the loader's state is
asked for, and then makes a fresh object of them at every call. They are not a file format, as they
never leave the processes of one job.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from typing import Any

import torch

from stateful_gpu_loader.errors import LoaderError


def freeze(state: Any, owner: str) -> bytes:
    """Pickle a state.

    Args:
        state: what a user's object returned.
        owner: the object whose state it is, for the error.

    Raises:
        LoaderError: it cannot be pickled.

    >>> thaw(freeze({"i": 3}, "MySampler"))
    {'i': 3}
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(state)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise LoaderError(
            f"state_dict() of {owner} returned {type(state).__name__} that cannot be copied: "
            f"{error}. Remedy: return plain values, arrays and tensors"
        ) from error
    return buffer.getvalue()


def thaw(frozen: bytes) -> Any:
    """A fresh copy of the state."""
    return pickle.loads(frozen)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the bytes, dtype, shape and strides of a tensor are all that there is to it."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_nested
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _plain_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Pickle a tensor by its bytes, in a third of the time that torch's own file format takes."""
    if not is_plain(tensor):
        return tuple(tensor.__reduce_ex__(2))
    rows = tensor.contiguous().reshape(-1)
    if rows.stride() != (1,):
        # A tensor of one element or none is contiguous whatever its stride, but then it cannot be
        # viewed as bytes.
        rows = rows.clone(memory_format=torch.contiguous_format)
    data: Any = rows.view(torch.uint8).numpy()
    return _rebuild, (pickle.PickleBuffer(data), tensor.dtype, tuple(tensor.shape))


def _rebuild(data: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if not data:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(shape)


class _Pickler(pickle.Pickler):
    dispatch_table = copyreg.dispatch_table.copy()
    dispatch_table[torch.Tensor] = _plain_tensor
