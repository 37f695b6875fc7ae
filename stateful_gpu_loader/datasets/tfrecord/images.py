"""ExampleImages: the encoded image and the target in a tf.train.Example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from stateful_gpu_loader.datasets.framed.framing import Bytes, Place
from stateful_gpu_loader.datasets.target_choice import Target, TargetChoice
from stateful_gpu_loader.datasets.tfrecord.example import Values, features_of, values_of


class ExampleImages:
    """Takes image and target out of the records of a TFRecord file.

    Args:
        image: the feature with the encoded image, or several: the first that a record has.
        target: the feature, or features, that become the target.
        variable_length: features of the target that are always arrays; others are single values
            where a record has one value.

    >>> choice = ExampleImages("image", "label", ())
    >>> choice
    image='image', target='label'
    """

    def __init__(
        self, image: str | Sequence[str], target: Target, variable_length: str | Sequence[str]
    ) -> None:
        self._image = (image,) if isinstance(image, str) else tuple(image)
        self._target = TargetChoice(target)
        names = (variable_length,) if isinstance(variable_length, str) else tuple(variable_length)
        if not self._image:
            raise ValueError(f"{image = } names no feature. Remedy: name one, or several")
        if unknown := set(names) - set(self._target.names):
            raise ValueError(
                f"variable_length names {sorted(unknown)}, which {target = } does not. Remedy: "
                "name features of the target"
            )
        self._variable_length = frozenset(names)

    def take(self, payload: Bytes, place: Place, number: int) -> tuple[torch.Tensor, Any]:
        """As ``ImageRecords.take``; the image shares the record's memory."""
        try:
            features = features_of(payload.data)
            image = self._find_image(features)
            target = self._target.make(lambda name: self._value(features, name), number)
        except ValueError as error:
            raise place.damaged(str(error)) from error
        return torch.from_numpy(np.frombuffer(image, dtype=np.uint8)), target

    def record(self, payload: Bytes, place: Place) -> dict[str, Any]:
        """All features of a record: lists of bytes, float32 [n] and int64 [n].

        Raises:
            ValueError: it is no Example.
        """
        record: dict[str, Any] = {}
        try:
            for name, feature in features_of(payload.data).items():
                values = values_of(feature)
                if isinstance(values, list):
                    record[name] = [bytes(value) for value in values]
                else:
                    record[name] = [] if values is None else values
        except ValueError as error:
            raise place.damaged(str(error)) from error
        return record

    def _find_image(self, features: dict[str, memoryview]) -> memoryview:
        name = next((name for name in self._image if name in features), self._image[0])
        values = _values(features, name)
        if not isinstance(values, list) or len(values) != 1:
            raise ValueError(f"the feature {name!r} is {_kind(values)}, not one encoded image")
        return values[0]

    def _value(self, features: dict[str, memoryview], name: str) -> Any:
        values = _values(features, name)
        is_single = len(values) == 1 and name not in self._variable_length
        if isinstance(values, list):
            return bytes(values[0]) if is_single else [bytes(value) for value in values]
        if not is_single:
            return values
        # A single float stays float32, as it would be in an array.
        return values[0] if values.dtype == np.float32 else int(values[0])

    def __repr__(self) -> str:
        image = self._image[0] if len(self._image) == 1 else self._image
        kept = sorted(self._variable_length)
        return f"{image=}, target={self._target!r}" + (f", variable_length={kept}" if kept else "")


def _values(features: dict[str, memoryview], name: str) -> Values:
    values = values_of(features[name]) if name in features else None
    if values is None:
        there = ", ".join(repr(found) for found in sorted(features)[:20])
        raise ValueError(f"it has no feature {name!r}; its features are {there or 'none'}")
    return values


def _kind(values: Values) -> str:
    kind = "bytes" if isinstance(values, list) else values.dtype.name
    return f"{len(values)} values of {kind}"
