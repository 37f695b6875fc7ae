"""Pointwise: what is done to each value of a batch alone, after its pixels have their place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stateful_gpu_loader.transforms.batches.device import on_device

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Pointwise:
    """Subtractions, multiplications and divisions in float32, and one cast.

    >>> scaled = Pointwise().then("*", [1 / 255]).cast(torch.float16)
    >>> scaled.apply(torch.tensor([[[[51.0]]]]))
    tensor([[[[0.2000]]]], dtype=torch.float16)
    """

    steps: str = ""
    """One of "-", "*", "/" for each step, in order."""
    coefficients: tuple[tuple[float, ...], ...] = ()
    """For each step one number, or one for each channel; they are rounded to float32."""
    dtype: torch.dtype = torch.uint8
    """The dtype of the result; uint8 means that there are no steps."""

    def then(self, step: str, numbers: Iterable[float]) -> Pointwise:
        """One step more, after which the values are float32."""
        coefficients = (*self.coefficients, tuple(numbers))
        return Pointwise(self.steps + step, coefficients, torch.float32)

    def cast(self, dtype: torch.dtype) -> Pointwise:
        """The result in another dtype."""
        return replace(self, dtype=dtype)

    def fits(self, channels: int) -> bool:
        """Whether images of so many channels keep their shape."""
        return all(len(numbers) in (1, channels) for numbers in self.coefficients)

    def table(self, channels: int) -> npt.NDArray[np.float32]:
        """The coefficients, float32 [number of steps, channels]."""
        table = np.empty((len(self.steps), channels), dtype=np.float32)
        for row, numbers in zip(table, self.coefficients, strict=True):
            row[:] = numbers
        return table

    def apply(self, batch: Tensor) -> Tensor:
        """Do it, in place but for the cast.

        Args:
            batch: float32 [n, C, H, W]: whole numbers from 0 to 255.
        """
        table = on_device(self.table(batch.shape[1]), batch.device)
        for step, numbers in zip(self.steps, table, strict=True):
            values = numbers.view(-1, 1, 1)
            if step == "-":
                batch.sub_(values)
            elif step == "*":
                batch.mul_(values)
            else:
                batch.div_(values)
        return batch.to(self.dtype)
