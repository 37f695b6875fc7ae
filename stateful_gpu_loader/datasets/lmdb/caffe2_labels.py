"""What belongs to a Caffe2 image: its label of five kinds, further tensors, a box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.datasets.lmdb.caffe2 import TensorProto


class LabelType(IntEnum):
    """How labels are stored: the numbers of Caffe2's image_input.h and of DALI's reader."""

    SINGLE_LABEL = 0
    """One number: a class."""
    MULTI_LABEL_SPARSE = 1
    """The indices of the labels that apply; becomes 1 there and 0 elsewhere."""
    MULTI_LABEL_DENSE = 2
    """A vector, as it is."""
    MULTI_LABEL_WEIGHTED_SPARSE = 3
    """Indices, and in the next tensor a weight for each; becomes the weights there, else 0."""
    NO_LABEL = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordLayout:
    """What the tensors after the image are, in their order: label, further tensors, box.

    >>> RecordLayout(label_type=LabelType.MULTI_LABEL_SPARSE)
    Traceback (most recent call last):
        ...
    ValueError: label_type=1 makes vectors of num_labels=None. Remedy: pass num_labels, an int of \
at least 1
    """

    label_type: LabelType = LabelType.SINGLE_LABEL
    num_labels: int | None = None
    """Length of the vectors that sparse labels become."""
    additional_inputs: int = 0
    """Tensors between the label and the box."""
    bbox: bool = False
    """Whether the last tensor is a box."""

    def __post_init__(self) -> None:
        if self.is_sparse and (self.num_labels is None or self.num_labels < 1):
            raise ValueError(
                f"label_type={self.label_type:d} makes vectors of num_labels={self.num_labels}. "
                "Remedy: pass num_labels, an int of at least 1"
            )
        if self.additional_inputs < 0:
            raise ValueError(
                f"additional_inputs is {self.additional_inputs}. Remedy: pass how many tensors "
                "follow the label, 0 or more"
            )

    @property
    def is_sparse(self) -> bool:
        """Whether the label is stored as indices."""
        kinds = (LabelType.MULTI_LABEL_SPARSE, LabelType.MULTI_LABEL_WEIGHTED_SPARSE)
        return self.label_type in kinds

    @property
    def num_label_tensors(self) -> int:
        """Tensors that the label is stored in."""
        if self.label_type == LabelType.NO_LABEL:
            return 0
        return 2 if self.label_type == LabelType.MULTI_LABEL_WEIGHTED_SPARSE else 1


def read_targets(
    tensors: Sequence[TensorProto], layout: RecordLayout
) -> list[int | float | npt.NDArray[Any]]:
    """The label, if there is one, the additional tensors, and the box, if it is asked for.

    Args:
        tensors: of one record, the image first.
        layout: of every record.

    Returns:
        label: an int or a float; or a vector: [num_labels] of the stored dtype (sparse), [n] as
            stored (dense), float32 [num_labels] (weighted).
        additional tensors: flat [n], of their dtypes.
        box: int32 [4], as stored: Caffe2 reads top, left, height, width in pixels.

    Raises:
        ValueError: a tensor is missing, or holds what the layout does not say.
    """
    labels, further = layout.num_label_tensors, layout.additional_inputs
    expected = 1 + labels + further + layout.bbox
    if len(tensors) < expected:
        raise ValueError(
            f"{len(tensors)} tensors in the record; label_type={layout.label_type:d}, "
            f"additional_inputs={further} and bbox={layout.bbox} ask for {expected}"
        )
    targets: list[int | float | npt.NDArray[Any]] = []
    if labels:
        targets.append(_label(tensors[1], tensors[labels], layout))
    targets += [tensor.values() for tensor in tensors[1 + labels : 1 + labels + further]]
    if layout.bbox:
        box = tensors[1 + labels + further].values()
        if box.shape != (4,) or box.dtype != np.int32:
            raise ValueError(f"a box of {len(box)} values of {box.dtype}, expected 4 of int32")
        targets.append(box)
    return targets


def _label(
    stored: TensorProto, last: TensorProto, layout: RecordLayout
) -> int | float | npt.NDArray[Any]:
    values = stored.values()
    if layout.label_type == LabelType.SINGLE_LABEL:
        if len(values) != 1:
            raise ValueError(f"a single label of {len(values)} values, expected 1")
        number: int | float = values[0].item()
        return number
    if not layout.is_sparse:
        return values
    length = layout.num_labels or 0
    is_label = (values >= 0) & (values < length) & (values == np.trunc(values))
    if not is_label.all():
        raise ValueError(f"labels {values[:10].tolist()}, expected integers of 0 to {length - 1}")
    indices = values.astype(np.int64)
    if layout.label_type == LabelType.MULTI_LABEL_SPARSE:
        vector = np.zeros(length, dtype=values.dtype)
        vector[indices] = 1
        return vector
    weights = last.values()
    if len(weights) != len(indices):
        raise ValueError(f"{len(weights)} weights for {len(indices)} labels, expected one for each")
    if weights.dtype != np.float32:
        raise ValueError(f"weights of {weights.dtype}, expected float32")
    weighted = np.zeros(length, dtype=np.float32)
    weighted[indices] = weights
    return weighted
