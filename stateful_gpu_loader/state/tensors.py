"""Values of tensors and arrays as plain bytes, all of them or a sample, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_MAX_MAPPED_ROWS = 8
"""Maximum number of rows of an array in a file."""
_MAX_VALUES = 16
"""Maximum number of values examined in a row."""


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether bytes, dtype, shape and strides describe a tensor completely."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_nested
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def bytes_of(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return the values of a dense tensor on any device, in index order.

    Returns:
        uint8 [num_bytes], which shares the tensor's memory where possible.

    >>> bytes_of(torch.tensor([[1, 2], [3, 4]], dtype=torch.int8).T).tolist()
    [1, 3, 2, 4]
    """
    rows = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if rows.stride() != (1,):
        # A contiguous tensor with one element cannot be viewed as bytes unless its stride is 1.
        rows = rows.clone(memory_format=torch.contiguous_format)
    values: npt.NDArray[np.uint8] = rows.view(torch.uint8).cpu().numpy()
    return values


def tensor_of(data: bytearray, dtype: torch.dtype, shape: Sequence[Any]) -> torch.Tensor:
    """Return a contiguous CPU tensor over bytes that nothing else uses.

    >>> tensor_of(bytearray(b"\\1\\2"), torch.int8, [2, 1]).tolist()
    [[1], [2]]
    """
    if not data:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(tuple(shape))


def spread(length: int, most: int) -> list[int]:
    """Return indices of a sequence: all, or the first, the last and evenly spread ones.

    >>> spread(3, 5), spread(101, 5)
    ([0, 1, 2], [0, 25, 50, 75, 100])
    """
    if length <= most:
        return list(range(length))
    return [number * (length - 1) // (most - 1) for number in range(most)]


def sampled_bytes(array: np.ndarray[Any, Any] | torch.Tensor, max_rows: int) -> bytes:
    """Return the bytes of the first, last, and evenly spread rows.

    Raises:
        TypeError, ValueError, RuntimeError: the values are objects, sparse, or on the meta device.
    """
    shape = tuple(array.shape) or (1,)
    size = math.prod(shape)
    if not size:
        return b""
    if isinstance(array, np.memmap):
        max_rows = min(max_rows, _MAX_MAPPED_ROWS)
    row_size = size // shape[0]
    rows = np.array(spread(shape[0], max_rows * (_MAX_VALUES if row_size == 1 else 1)))
    values = np.array(spread(row_size, _MAX_VALUES))
    places = np.unravel_index((rows[:, None] * row_size + values).ravel(), shape)
    if isinstance(array, torch.Tensor):
        given = array.detach().reshape(1) if array.ndim == 0 else array.detach()
        found = given[tuple(torch.from_numpy(place).to(array.device) for place in places)]
        return bytes_of(found).tobytes()
    if array.dtype.hasobject:
        raise TypeError("pointers are no content")
    return without_padding((array.reshape(1) if array.ndim == 0 else array)[places]).tobytes()


def is_whole(array: np.ndarray[Any, Any] | torch.Tensor, max_rows: int) -> bool:
    """Whether :func:`sampled_bytes` returns the bytes of all values."""
    rows, *others = map(int, array.shape or (1,))
    row_size = math.prod(others)
    if isinstance(array, np.memmap):
        max_rows = min(max_rows, _MAX_MAPPED_ROWS)
    most = max_rows * (_MAX_VALUES if row_size == 1 else 1)
    return rows * row_size == 0 or (rows <= most and row_size <= _MAX_VALUES)


def without_padding(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return records with zeros in the padding between their fields."""
    if values.dtype.names is None:
        return values
    clean = np.zeros(values.shape, values.dtype)
    for name in values.dtype.names:
        clean[name] = without_padding(values[name])
    return clean
