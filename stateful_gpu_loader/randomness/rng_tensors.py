"""Random numbers as tensors: which dtypes can hold them, and how they are rounded."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (
    *(torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint64, torch.uint32, torch.uint16, torch.uint8),
)
FLAGS = (torch.bool, *INTEGERS, *FLOATS)


def check_dtype(
    dtype: Any, allowed: tuple[torch.dtype, ...], least: float, greatest: float
) -> None:
    """Whether the numbers from least to greatest fit, before any is drawn.

    Args:
        dtype: a torch.dtype, or None for NumPy.
        allowed: the dtypes that make sense.
        least: of the numbers.
        greatest: of the numbers.

    Raises:
        ValueError: they do not, or it is no such dtype.

    >>> check_dtype(torch.uint8, INTEGERS, 0, 256)
    Traceback (most recent call last):
        ...
    ValueError: numbers from 0 to 256 do not fit into torch.uint8, which ends at 0 and 255. \
Remedy: pass a wider dtype or a narrower range
    """
    if dtype is None:
        return
    if not isinstance(dtype, torch.dtype) or dtype not in allowed:
        names = ", ".join(map(str, allowed))
        raise ValueError(f"{dtype = } is none for these numbers. Remedy: pass None or {names}")
    if dtype == torch.bool:
        return
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    if least < limits.min or greatest > limits.max:
        raise ValueError(
            f"numbers from {least} to {greatest} do not fit into {dtype}, which ends at "
            f"{limits.min} and {limits.max}. Remedy: pass a wider dtype or a narrower range"
        )


def rounded_within(
    numbers: npt.NDArray[np.float64], low: float, high: float, dtype: torch.dtype
) -> torch.Tensor:
    """Numbers of [low, high) rounded to the nearest of a dtype, and not out of the interval.

    Rounding to 8 bits would turn one in 512 numbers of [0, 1) into 1. Such a number becomes the
    greatest of the dtype below ``high``, and one below ``low`` the least that is not. If the
    interval holds no number of the dtype, they stay the nearest. In float64 nothing is rounded.

    >>> rounded_within(np.array([0.5, 0.9999]), 0.0, 1.0, torch.bfloat16)
    tensor([0.5000, 0.9961], dtype=torch.bfloat16)
    """
    rounded = torch.from_numpy(numbers).to(dtype)
    if dtype == torch.float64:
        return rounded
    least, greatest = torch.tensor([low, high], dtype=torch.float64, device="cpu").to(dtype)
    if least.double() < low:
        least = torch.nextafter(least, torch.tensor(math.inf, dtype=dtype, device="cpu"))
    if greatest.double() >= high:
        greatest = torch.nextafter(greatest, torch.tensor(-math.inf, dtype=dtype, device="cpu"))
    return rounded.clamp(least, greatest) if least <= greatest else rounded
