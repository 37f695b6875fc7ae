"""RecordIOImages: the encoded image and the target in a record of MXNet's RecordIO."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from stateful_gpu_loader.datasets.framed.framing import Bytes, Place
from stateful_gpu_loader.datasets.recordio.records import ImageRecord, unpack
from stateful_gpu_loader.datasets.target_choice import Target, TargetChoice

FIELDS = ("class", "label", "id", "id2")
"""What a target can be made of."""


class RecordIOImages:
    """Takes image and target out of the records of a RecordIO file.

    Args:
        target: ``"class"`` is the label as an int; ``"label"`` is it as it is stored, a float32, or
            float32 [n] of records with n labels; ``"id"`` and ``"id2"`` are the ints beside it.

    Raises:
        ValueError: ``target`` names something else.

    >>> RecordIOImages("class")
    target='class'
    """

    def __init__(self, target: Target) -> None:
        self._target = TargetChoice(target)
        if unknown := set(self._target.names) - set(FIELDS):
            raise ValueError(
                f"{target = } names {sorted(unknown)}. Remedy: name fields of {FIELDS}"
            )

    def take(self, payload: Bytes, place: Place, number: int) -> tuple[torch.Tensor, Any]:
        """The image's bytes, uint8 [n], which share the record's memory; and the target.

        Args:
            payload: the record.
            place: where it lies.
            number: the target where no field is asked for.

        Raises:
            ValueError: the record is malformed, or its label is no class and one is asked for.
        """
        record = unpack(payload, place)
        target = self._target.make(lambda name: _value(record, name, place), number)
        return torch.from_numpy(record.image), target

    def __repr__(self) -> str:
        return f"target={self._target!r}"


def record_of(payload: Bytes, place: Place) -> dict[str, Any]:
    """All of a record: ``image`` as bytes, ``label`` float32 or float32 [n], ``id``, ``id2``.

    Raises:
        ValueError: the record is malformed.
    """
    record = unpack(payload, place)
    return {**record._asdict(), "image": record.image.tobytes()}


def _value(record: ImageRecord, name: str, place: Place) -> Any:
    if name != "class":
        return getattr(record, name)
    label = record.label
    if np.size(label) == 1:
        number = float(np.ravel(label)[0])
        if number.is_integer():
            return int(number)
    raise place.damaged(f"its label is {label}, which is no class", "pass target='label'")
