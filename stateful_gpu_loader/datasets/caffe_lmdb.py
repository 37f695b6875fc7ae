"""CaffeLMDBSource: Caffe's Datum records, an image and a label each, written by convert_imageset.

Field numbers of ``caffe.proto``: channels 1, height 2, width 3, data 4, label 5, float_data 6,
encoded 7.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.datasets.lmdb import LmdbSource
from stateful_gpu_loader.datasets.protobuf import as_bytes, as_varint, fields, signed
from stateful_gpu_loader.datasets.storage.paths import AnyPath
from stateful_gpu_loader.decoders.png import (
    ChannelOrder,
    check_channel_order,
    stored_png,
)

_NUMBERS = {1: "channels", 2: "height", 3: "width", 5: "label", 7: "encoded"}

_NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Datum:
    """A record of a Caffe database, with its fields as stored.

    >>> datum = parse_datum(bytes.fromhex("220361626328073801"))
    >>> bytes(datum.data), datum.label, datum.encoded
    (b'abc', 7, True)
    """

    channels: int = 0
    height: int = 0
    """Pixels."""
    width: int = 0
    """Pixels."""
    data: memoryview = _NOTHING
    """An image file, or pixels, uint8 [channels, height, width]."""
    label: int | None = None
    has_float_data: bool = False
    """Whether the record holds features instead of an image."""
    encoded: bool | None = None
    """Whether ``data`` is a file; None if the record does not say so."""

    @property
    def is_file(self) -> bool:
        """Return whether ``data`` is an image file.

        Old records, from before Caffe supported encoded images, do not say. They hold pixels if the
        data has exactly the length that the sizes require. DALI treats them all as files.
        """
        if self.encoded is not None:
            return self.encoded
        return not len(self.data) or self.channels * self.height * self.width != len(self.data)


def parse_datum(message: bytes | memoryview) -> Datum:
    """Parse a Datum without copying its data.

    Raises:
        ValueError: the message is malformed; the text has the byte.
    """
    numbers: dict[str, int] = {}
    data, has_float_data = _NOTHING, False
    for number, wire_type, value in fields(message):
        if number in _NUMBERS:
            name = _NUMBERS[number]
            numbers[name] = as_varint(wire_type, value, name)
        elif number == 4:
            data = as_bytes(wire_type, value, "data")
        elif number == 6:
            has_float_data = True
    return Datum(
        channels=signed(numbers.get("channels", 0), bits=32),
        height=signed(numbers.get("height", 0), bits=32),
        width=signed(numbers.get("width", 0), bits=32),
        data=data,
        label=signed(numbers["label"], bits=32) if "label" in numbers else None,
        has_float_data=has_float_data,
        encoded=bool(numbers["encoded"]) if "encoded" in numbers else None,
    )


def image_file(datum: Datum, channel_order: ChannelOrder = "BGR") -> npt.NDArray[np.uint8]:
    """Return the image as a file: its own bytes, not copied, or a PNG of its pixels.

    Args:
        channel_order: order of the channels of pixels; Caffe's tools store OpenCV's BGR.

    Returns:
        uint8 [num_bytes].

    Raises:
        ValueError: there is no image, the number of pixels differs from its sizes, or the number
            of channels is not one or three.
    """
    if not len(datum.data):
        held = "float_data" if datum.has_float_data else "no data"
        raise ValueError(f"the record holds {held}, not an image")
    data = np.frombuffer(datum.data, dtype=np.uint8)
    if datum.is_file:
        return data
    channels, height, width = datum.channels, datum.height, datum.width
    if channels not in (1, 3) or min(height, width) < 1 or channels * height * width != len(data):
        raise ValueError(
            f"{channels} channels of {height} x {width} pixels in {len(data)} bytes; expected 1 or "
            "3 channels, and a byte for each of their pixels"
        )
    planes = data.reshape(channels, height, width)
    return stored_png(planes.transpose(1, 2, 0), channel_order)


class CaffeLMDBSource(LmdbSource):
    """Images and classes from LMDBs of Caffe's ``Datum`` records.

    Encoded images are passed on unchanged, raw pixels as PNG. Order and labels are those of DALI's
    ``fn.readers.caffe``.

    Args:
        paths: the folder with ``data.mdb``, or the file itself; or several, one after the other.
        channel_order: order of three raw channels. Caffe's ``convert_imageset`` stores BGR; its
            CIFAR-10 example keeps the data set's RGB.
        label_available: False for records without labels: the target is the sample's index.

    Attributes:
        paths: the paths, absolute.

    Raises:
        FileNotFoundError: no such path.
        OSError: the file is not an LMDB, or is truncated.
        ValueError: a database has no records, no path was given, or an unknown channel order.
        MissingDependency: the package ``lmdb`` is not installed.

    >>> import lmdb, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with lmdb.open(folder) as database, database.begin(write=True) as transaction:
    ...         _ = transaction.put(b"00000000_tom.jpg", bytes.fromhex("2203ffd8ff 2807 3801"))
    ...     source = CaffeLMDBSource(folder)
    ...     len(source), source[0]
    (1, (tensor([255, 216, 255], dtype=torch.uint8), 7))
    """

    suits_processes = True

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
        datum = parse_datum(record)
        data = image_file(datum, self.channel_order)
        if not self.label_available:
            return data, index
        if datum.label is None:
            raise ValueError("the record has no label, as with label_available=False")
        return data, datum.label

    def settings(self) -> str:
        return f"caffe, {self.channel_order}, label_available={self.label_available}"
