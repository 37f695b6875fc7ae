"""Conversion between a tensor's values and plain bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


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
        # A tensor with at most one element is contiguous for any stride, but cannot be viewed as
        # bytes unless its stride is 1.
        rows = rows.clone(memory_format=torch.contiguous_format)
    found: npt.NDArray[np.uint8] = rows.view(torch.uint8).cpu().numpy()
    return found


def tensor_of(data: bytearray, dtype: torch.dtype, shape: Sequence[Any]) -> torch.Tensor:
    """Return a contiguous CPU tensor over bytes that nothing else uses.

    >>> tensor_of(bytearray(b"\\1\\2"), torch.int8, [2, 1]).tolist()
    [[1], [2]]
    """
    if not data:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(tuple(shape))
