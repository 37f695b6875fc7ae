"""Caffe2LMDBSource: images that Caffe2's tools wrote into LMDB."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.datasets.lmdb.caffe import ChannelOrder
from stateful_gpu_loader.datasets.lmdb.caffe2 import image_file, parse_tensors
from stateful_gpu_loader.datasets.lmdb.caffe2_labels import LabelType, RecordLayout, read_targets
from stateful_gpu_loader.datasets.lmdb.caffe_source import check_channel_order
from stateful_gpu_loader.datasets.lmdb.source import AnyPath, LmdbSource


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
