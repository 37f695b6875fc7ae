"""Moving finished batches of any dataset to the device."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch

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


def map_tensors(batch: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure with ``change`` of each tensor, and of each object that has ``to()``.

    Lists, tuples, named tuples, mappings and dataclasses are gone through, as torch's
    ``pin_memory`` does; whatever else is in the batch stays what it is. An object of the user's
    that has ``to()`` (a PackedSequence, a graph) is not looked into.

    >>> map_tensors({"a": [torch.ones(2), "text"]}, lambda tensor: tensor + 1)
    {'a': [tensor([2., 2.]), 'text']}
    """
    if isinstance(batch, (str, bytes, bytearray, np.ndarray, type)):
        return batch
    if isinstance(batch, torch.Tensor) or callable(getattr(batch, "to", None)):
        return change(batch)
    if isinstance(batch, Mapping):
        changed = {key: map_tensors(value, change) for key, value in batch.items()}
        if isinstance(batch, MutableMapping) and type(batch) is not dict:
            rebuilt = copy.copy(batch)  # a defaultdict keeps its factory
            rebuilt.update(changed)
            return rebuilt
        return changed if type(batch) is dict else _rebuilt(batch, changed)
    if isinstance(batch, tuple):
        parts = [map_tensors(part, change) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else _rebuilt(batch, parts)
    if isinstance(batch, Sequence) and not isinstance(batch, range):
        parts = [map_tensors(part, change) for part in batch]
        return parts if type(batch) is list else _rebuilt(batch, parts)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = [field.name for field in dataclasses.fields(batch) if field.init]
        return dataclasses.replace(
            batch, **{name: map_tensors(getattr(batch, name), change) for name in fields}
        )
    return batch


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """The tensors of a batch, in its order."""
    found: list[torch.Tensor] = []

    def note(thing: Any) -> Any:
        if isinstance(thing, torch.Tensor):
            found.append(thing)
        return thing

    map_tensors(batch, note)
    return found


def _rebuilt(batch: Any, parts: Any) -> Any:
    """Of the batch's own type, where that takes its parts; as torch, a plain one otherwise."""
    try:
        return type(batch)(parts)
    except TypeError:
        return parts
