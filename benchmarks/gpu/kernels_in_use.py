"""Kernels that the recipes run on a GPU: Triton's, or torch's operators as a fallback.

Triton needs a C compiler and Python's headers. Without them the loader works, with a warning in the
log, but its figures do not represent this package's kernels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import ModuleType

import torch
import triton

from stateful_gpu_loader.transforms.batches import device as device_module
from stateful_gpu_loader.transforms.batches import ragged
from stateful_gpu_loader.transforms.color import jitter

FALLBACK = "torch's operators"

_KERNELS: dict[str, Callable[[torch.device], ModuleType | None]] = {
    "resampling": ragged._kernels,
    "ColorJitter": jitter._kernels,
}


class _Noted(logging.Handler):
    """Keeps the last message."""

    text = "the log says why"

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


def kernels_in_use(device: torch.device) -> dict[str, str]:
    """Return for each kind of recipe Triton's version, or the fallback with its reason."""
    return {name: _in_use(kernels, device) for name, kernels in _KERNELS.items()}


def no_result(found: Mapping[str, str]) -> str | None:
    """Return why figures measured with these kernels would not be valid, or None."""
    missing = [f"{name}: {kernels}" for name, kernels in found.items() if FALLBACK in kernels]
    if not missing:
        return None
    return (
        f"nothing is measured, as Triton's kernels do not run: {'; '.join(missing)}. Remedy: "
        "install a C compiler and Python's headers (gcc, python3-dev)"
    )


def _in_use(kernels: Callable[[torch.device], ModuleType | None], device: torch.device) -> str:
    logger, noted = logging.getLogger(device_module.__name__), _Noted()
    logger.addHandler(noted)
    try:
        if kernels(device) is not None:
            return f"Triton {triton.__version__}"
    finally:
        logger.removeHandler(noted)
    return f"{FALLBACK} ({noted.text})"
