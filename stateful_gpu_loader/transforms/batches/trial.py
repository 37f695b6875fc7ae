"""Whether Triton kernels run here: it needs a C compiler, and not every image has one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import ModuleType

import torch

_logger = logging.getLogger(__name__)


def kernels_that_run(try_out: Callable[[], ModuleType], instead: str) -> ModuleType | None:
    """The kernels that ``try_out`` imports and launches; None, with a warning, where that fails.

    Args:
        try_out: imports a module of kernels, launches them once and returns it.
        instead: what is done without them, for the warning.

    Raises:
        torch.OutOfMemoryError: which code runs depends on the machine, never on its load (law 1).
    """
    try:
        return try_out()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        _logger.warning("triton does not run here, so %s, slower: %s", instead, error)
        return None
