"""Moves finished batches of any dataset to the device."""

from __future__ import annotations

import copy
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch

from stateful_gpu_loader.engine.device.place import Place

SMALL_BYTES = 2**20
"""Largest size of tensors that are copied together."""

_JOINED = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    }
)
"""Types of small tensors that are copied together."""


def move_tensors(batch: Any, place: Place) -> Any:
    """Copy a batch's plain tensors to the device, asynchronously, in a thread of the stage.

    Small tensors that differ only in length, such as the boxes of each image, are copied together,
    because each torch call may release the GIL. Sparse tensors, and user objects with ``to()``, are
    left to :func:`move_rest`.
    """
    tensors = [tensor for tensor in tensors_of(batch) if _is_plain(tensor)]
    groups: defaultdict[object, list[int]] = defaultdict(list)
    for i, tensor in enumerate(tensors):
        groups[(tensor.dtype, tensor.shape[1:]) if _is_small(tensor) else i].append(i)
    moved: dict[int, torch.Tensor] = {}
    for members in groups.values():
        copies = _copied_together([tensors[i] for i in members], place)
        moved.update(zip(members, copies, strict=True))
    in_order = (moved[i] for i in range(len(tensors)))
    return map_tensors(batch, lambda thing: next(in_order) if _is_plain(thing) else thing)


def _is_small(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.dtype in _JOINED
        and tensor.dim() > 0
        and tensor.is_contiguous()
        and tensor.nbytes <= SMALL_BYTES
    )


def _copied_together(tensors: list[torch.Tensor], place: Place) -> Sequence[torch.Tensor]:
    if len(tensors) == 1:
        return [place.copy_in(tensors[0])]
    lengths = [len(tensor) for tensor in tensors]
    memory = place.empty_host((sum(lengths), *tensors[0].shape[1:]), tensors[0].dtype)
    copied = place.copy_in(torch.cat(tensors, out=memory))
    # Unlike views, these may be changed in place.
    parts: Sequence[torch.Tensor] = copied.unsafe_split_with_sizes(lengths)
    return parts


def move_rest(batch: Any, device: torch.device) -> Any:
    """Move what :func:`move_tensors` left out, in the user's thread and stream."""
    return map_tensors(batch, lambda thing: thing if _is_plain(thing) else thing.to(device))


def _is_plain(thing: Any) -> bool:
    return isinstance(thing, torch.Tensor) and thing.layout is torch.strided


def map_tensors(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Return the same structure with ``change`` applied to each tensor and object with ``to()``.

    Lists, tuples, named tuples, mappings and dataclasses are traversed, as in torch's
    ``pin_memory``; anything else is kept.

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
    tensors: list[torch.Tensor] = []

    def note(thing: Any) -> Any:
        if isinstance(thing, torch.Tensor):
            tensors.append(thing)
        return thing

    map_tensors(batch, note)
    return tensors


def _rebuilt(batch: Any, parts: Any) -> Any:
    """Rebuild the batch's type from its parts, or, as torch does, return a plain container."""
    try:
        return type(batch)(parts)
    except TypeError:
        return parts
