"""Caffe2LMDBSource: images that Caffe2's tools wrote into LMDB, and what belongs to them.

That is a label of one of five kinds, further tensors, and a box.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.datasets.lmdb.caffe2 import TensorProto, image_file, parse_tensors
from stateful_gpu_loader.datasets.lmdb.raw_image import ChannelOrder, check_channel_order
from stateful_gpu_loader.datasets.lmdb.source import LmdbSource
from stateful_gpu_loader.datasets.storage.paths import AnyPath


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


class Caffe2LMDBSource(LmdbSource):
    """Images and labels from LMDBs of Caffe2's ``TensorProtos`` records.

    The first tensor is the image: a file, handed on as it is, or pixels, handed on as a PNG that
    holds them exactly. The label follows, then additional tensors, then a box, as in Caffe2 and
    in DALI's ``fn.readers.caffe2``, whose arguments these are. The target is the label alone
    where nothing else is asked for; otherwise the tuple (label, additional tensors..., box); the
    sample's index where there is nothing at all.

    Args:
        paths: the folder with ``data.mdb``, or the file itself; or several, one after the other.
        label_type: 0: one number, an int or a float. 1: indices of the labels that apply, given
            as a vector [num_labels] of ones and zeros in the stored dtype. 2: a vector as
            stored. 3: indices and weights, given as float32 [num_labels]. 4: no label.
        num_labels: the length of the vectors of ``label_type`` 1 and 3.
        additional_inputs: tensors after the label, given flat in their dtypes.
        bbox: whether a last tensor is a box, given as int32 [4]: top, left, height, width.
        channel_order: how raw pixels of three channels are stored; Caffe2 takes them for BGR.

    Attributes:
        paths: the paths, absolute.

    Raises:
        FileNotFoundError: no such path.
        OSError: it is no LMDB, or truncated.
        ValueError: a database holds no record, no path was given, or an argument is not one of
            those above.
        MissingDependency: the package ``lmdb`` is not installed.

    >>> import lmdb, tempfile
    >>> record = bytes.fromhex("0a07 1004 3203 ffd8ff" "0a05 1002 2201 07")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with lmdb.open(folder) as database, database.begin(write=True) as transaction:
    ...         _ = transaction.put(b"00000000", record)
    ...     Caffe2LMDBSource(folder)[0]
    (tensor([255, 216, 255], dtype=torch.uint8), 7)
    """

    def __init__(
        self,
        paths: AnyPath | Iterable[AnyPath],
        *,
        label_type: int = LabelType.SINGLE_LABEL,
        num_labels: int | None = None,
        additional_inputs: int = 0,
        bbox: bool = False,
        channel_order: ChannelOrder = "BGR",
    ) -> None:
        if label_type not in list(LabelType):
            raise ValueError(f"label_type is {label_type!r}. Remedy: pass 0 to 4")
        check_channel_order(channel_order)
        self.layout = RecordLayout(
            label_type=LabelType(label_type),
            num_labels=num_labels,
            additional_inputs=additional_inputs,
            bbox=bbox,
        )
        self.channel_order = channel_order
        super().__init__(paths)

    def parse(self, record: memoryview, index: int) -> tuple[npt.NDArray[np.uint8], Any]:
        """The image as a file, and its target."""
        tensors = parse_tensors(record)
        if not tensors:
            raise ValueError("the record holds no tensor")
        targets = [
            torch.from_numpy(np.array(target)) if isinstance(target, np.ndarray) else target
            for target in read_targets(tensors, self.layout)
        ]
        data = image_file(tensors[0], self.channel_order)
        if not targets:
            return data, index
        alone = len(targets) == 1 and not self.layout.additional_inputs and not self.layout.bbox
        return data, targets[0] if alone else tuple(targets)

    def settings(self) -> str:
        """The arguments that change what is read."""
        layout = self.layout
        return (
            f"caffe2, {self.channel_order}, label_type={layout.label_type:d}, "
            f"num_labels={layout.num_labels}, additional_inputs={layout.additional_inputs}, "
            f"bbox={layout.bbox}"
        )


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
