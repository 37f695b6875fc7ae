"""RecordIOImages: the encoded image and the target in a record of MXNet's RecordIO."""

from __future__ import annotations

from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.datasets.framed.framing import Bytes, Place
from stateful_gpu_loader.datasets.target_choice import Target, TargetChoice

FIELDS = ("class", "label", "id", "id2")
"""The fields that a target can be made of."""

_IMAGE_HEADER = Struct("<IfQQ")


class ImageRecord(NamedTuple):
    """What MXNet's ``recordio.pack`` puts into a record."""

    label: np.float32 | npt.NDArray[np.float32]
    """One number, or float32 [flag] where flag > 0."""
    id: int
    id2: int
    """64 bits each, unsigned; id2 is usually 0."""
    image: Bytes
    """uint8 [n]: the encoded image, a view of the record."""


def unpack(payload: Bytes, place: Place) -> ImageRecord:
    """The label and the image of a record.

    Raises:
        ValueError: the record is shorter than its header says.

    >>> payload = np.frombuffer(_IMAGE_HEADER.pack(0, 3.0, 7, 0) + b"jpeg", dtype=np.uint8)
    >>> record = unpack(payload, Place("a.rec", 0, 0))
    >>> float(record.label), record.id, bytes(record.image)
    (3.0, 7, b'jpeg')
    """
    if len(payload) < _IMAGE_HEADER.size:
        raise place.damaged(
            f"it has {len(payload)} bytes, and the header of an image takes {_IMAGE_HEADER.size}"
        )
    flag, number, first_id, second_id = _IMAGE_HEADER.unpack_from(payload.data)
    if not flag:
        image = payload[_IMAGE_HEADER.size :]
        return ImageRecord(np.float32(number), first_id, second_id, image)
    end = _IMAGE_HEADER.size + 4 * flag
    if end > len(payload):
        raise place.damaged(f"it has {len(payload)} bytes, and its {flag} labels end at byte {end}")
    labels = np.frombuffer(payload[_IMAGE_HEADER.size : end].tobytes(), dtype="<f4")
    return ImageRecord(labels.astype(np.float32), first_id, second_id, payload[end:])


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
        """As ``ImageRecords.take``; the image shares the record's memory."""
        record = unpack(payload, place)
        target = self._target.make(lambda name: _value(record, name, place), number)
        return torch.from_numpy(record.image), target

    def record(self, payload: Bytes, place: Place) -> dict[str, Any]:
        """All of a record: ``image`` as bytes, ``label`` float32 or float32 [n], ``id``, ``id2``.

        Raises:
            ValueError: the record is malformed.
        """
        record = unpack(payload, place)
        return {**record._asdict(), "image": record.image.tobytes()}

    def __repr__(self) -> str:
        return f"target={self._target!r}"


def _value(record: ImageRecord, name: str, place: Place) -> Any:
    if name != "class":
        return getattr(record, name)
    label = record.label
    if np.size(label) == 1:
        number = float(np.ravel(label)[0])
        if number.is_integer():
            return int(number)
    raise place.damaged(f"its label is {label}, which is no class", "pass target='label'")
