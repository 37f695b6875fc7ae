"""Numbers of recipes on the device of the images, brought there without waiting for it.

What is decided for each sample is known on the CPU. It follows the images in one small copy that
the device's stream orders, so that nobody waits and nothing is read back.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


def on_device(numbers: npt.NDArray[Any], device: torch.device) -> Tensor:
    """A copy of an array on the device; on CUDA it is made when the current stream comes to it.

    >>> import numpy as np
    >>> on_device(np.array([3, 1]), torch.device("cpu"))
    tensor([3, 1])
    """
    copied = torch.tensor(numbers)
    if device.type == "cpu":
        return copied
    if device.type == "cuda":
        # From pageable memory even a copy that is not to block waits for the stream.
        copied = copied.pin_memory()
    return copied.to(device, non_blocking=True)


@functools.cache
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers that never change, [len(values)]: copied once for a device, and waited for then.

    It is kept for the life of the process, so that any stream may read it. Never write to it.

    >>> constant((0.5, 0.25), torch.float32, torch.device("cpu"))
    tensor([0.5000, 0.2500])
    """
    with torch.inference_mode(False):  # whoever asks first must not decide for all
        return torch.tensor(values, dtype=dtype).to(device)
