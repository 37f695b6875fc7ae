"""Moving finished batches of any dataset to the device."""

from __future__ import annotations

from typing import Any

import torch

from stateful_gpu_loader.engine.device.nested import map_tensors
from stateful_gpu_loader.engine.device.place import Place


def move_tensors(batch: Any, place: Place) -> Any:
    """The batch with its tensors on the device, queued there by a thread of the stage.

    Sparse tensors, and objects of the user's that have ``to()``, wait for :func:`move_rest`: what
    they do with their memory nobody else can know.
    """
    return map_tensors(batch, lambda thing: place.copy_in(thing) if _is_plain(thing) else thing)


def move_rest(batch: Any, device: torch.device) -> Any:
    """Move what :func:`move_tensors` left alone, in the user's own thread and stream."""
    return map_tensors(batch, lambda thing: thing if _is_plain(thing) else thing.to(device))


def _is_plain(thing: Any) -> bool:
    return isinstance(thing, torch.Tensor) and thing.layout is torch.strided
