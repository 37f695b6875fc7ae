"""CaffeLMDBSource: images that Caffe's convert_imageset wrote into LMDB."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.datasets.lmdb.caffe import ChannelOrder, image_file, parse_datum
from stateful_gpu_loader.datasets.lmdb.source import AnyPath, LmdbSource


class CaffeLMDBSource(LmdbSource):
    """Images and classes from LMDBs of Caffe's ``Datum`` records.

    Encoded images are handed on as they are; raw pixels as a PNG that holds them exactly. Order
    and labels are those of DALI's ``fn.readers.caffe``.

    Args:
        paths: the folder with ``data.mdb``, or the file itself; or several, one after the other.
        channel_order: how raw pixels of three channels are stored. Caffe's ``convert_imageset``
            stores BGR; its CIFAR-10 example keeps that data set's RGB.
        label_available: False for records without labels: the target is the sample's index.

    Attributes:
        paths: the paths, absolute.

    Raises:
        FileNotFoundError: no such path.
        OSError: it is no LMDB, or truncated.
        ValueError: a database holds no record, no path was given, or an unknown channel order.
        MissingDependency: the package ``lmdb`` is not installed.

    >>> import lmdb, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with lmdb.open(folder) as database, database.begin(write=True) as transaction:
    ...         _ = transaction.put(b"00000000_tom.jpg", bytes.fromhex("2203ffd8ff 2807 3801"))
    ...     source = CaffeLMDBSource(folder)
    ...     len(source), source[0]
    (1, (tensor([255, 216, 255], dtype=torch.uint8), 7))
    """

    def __init__(
        self,
        paths: AnyPath | Iterable[AnyPath],
        *,
        channel_order: ChannelOrder = "BGR",
        label_available: bool = True,
    ) -> None:
        check_channel_order(channel_order)
        self.channel_order = channel_order
        self.label_available = label_available
        super().__init__(paths)

    def parse(self, record: memoryview, index: int) -> tuple[npt.NDArray[np.uint8], int]:
        """The image as a file, and its class."""
        datum = parse_datum(record)
        data = image_file(datum, self.channel_order)
        if not self.label_available:
            return data, index
        if datum.label is None:
            raise ValueError("the record has no label, as with label_available=False")
        return data, datum.label

    def settings(self) -> str:
        """The arguments that change what is read."""
        return f"caffe, {self.channel_order}, label_available={self.label_available}"


def check_channel_order(channel_order: str) -> None:
    """Raises ValueError unless it is ``"BGR"`` or ``"RGB"``."""
    if channel_order not in ("BGR", "RGB"):
        raise ValueError(f"channel_order is {channel_order!r}. Remedy: pass 'BGR' or 'RGB'")
