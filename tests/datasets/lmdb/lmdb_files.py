"""Writers of LMDB files as Caffe and Caffe2 made them. Messages are encoded by hand."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from struct import pack

import lmdb
import numpy as np
import numpy.typing as npt
from PIL import Image

from stateful_gpu_loader.datasets import Source
from stateful_gpu_loader.decoders import make_decoder, probe
from tests.images import write_photo_folder

Field = tuple[int, int | float | bytes | str]

TENSOR_TYPES = {"float": 1, "int32": 2, "byte": 3, "string": 4, "uint8": 6, "int64": 10}


def varint(number: int) -> bytes:
    """Return the base-128 varint of a number's 64 bits in two's complement."""
    number &= 2**64 - 1
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def message(*fields: Field) -> bytes:
    """Return a message: ints as varints, floats as 32 bits, bytes unchanged."""
    encoded = b""
    for number, value in fields:
        if isinstance(value, float):
            encoded += varint(number << 3 | 5) + pack("<f", value)
        elif isinstance(value, int):
            encoded += varint(number << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            encoded += varint(number << 3 | 2) + varint(len(data)) + data
    return encoded


def encoded_datum(data: bytes, label: int, *, flag: bool | None = True) -> bytes:
    """Return Caffe's Datum of an image file; if ``flag`` is None, it has no field ``encoded``."""
    flags: list[Field] = [] if flag is None else [(7, int(flag))]
    return message((4, data), (5, label), *flags)


def raw_datum(
    pixels: npt.NDArray[np.uint8], label: int, *, flag: bool | None = False, bgr: bool = True
) -> bytes:
    """Return Caffe's Datum of pixels: one plane after another, blue first if ``bgr``.

    Args:
        pixels: uint8 [height, width, 3] in RGB, or [height, width].
    """
    planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    if bgr:
        planes = planes[::-1]
    channels, height, width = planes.shape
    flags: list[Field] = [] if flag is None else [(7, int(flag))]
    return message(
        (1, channels), (2, height), (3, width), (4, planes.tobytes()), (5, label), *flags
    )


def tensor(
    kind: str, values: Iterable[float] | bytes, *, dims: Sequence[int] = (), packed: bool = True
) -> bytes:
    """Return Caffe2's TensorProto.

    Args:
        kind: "float", "int32", "byte", "string", "uint8" or "int64".
        values: numbers, or bytes for the kinds "byte" and "string".
        dims: its shape.
        packed: whether repeated numbers are one field, as proto files ask, or one field each.
    """
    fields: list[Field] = [(1, size) for size in dims]
    fields.append((2, TENSOR_TYPES[kind]))
    if isinstance(values, bytes):
        return message(*fields, ({"byte": 5, "string": 6}[kind], values))
    number = {"float": 3, "int64": 10}.get(kind, 4)
    numbers = [float(value) if kind == "float" else int(value) for value in values]
    if not packed:
        return message(*fields, *((number, value) for value in numbers))
    if kind == "float":
        return message(*fields, (number, np.array(numbers, dtype="<f4").tobytes()))
    return message(*fields, (number, b"".join(varint(int(value)) for value in numbers)))


def tensors(*protos: bytes) -> bytes:
    return message(*((1, proto) for proto in protos))


def write_lmdb(
    path: Path, records: Mapping[str, bytes] | Sequence[bytes], *, subdir: bool = True
) -> Path:
    """Write an LMDB environment of records, by name or eight-digit number; return its path."""
    if not isinstance(records, Mapping):
        records = {f"{number:08d}": record for number, record in enumerate(records)}
    size = 2 * sum(len(record) + 4096 for record in records.values()) + (1 << 20)
    with (
        lmdb.open(str(path), map_size=size, subdir=subdir) as environment,
        environment.begin(write=True) as transaction,
    ):
        for name, record in records.items():
            transaction.put(name.encode(), record)
    return path


def pixels_of(file: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return the pixels of an encoded file, as Pillow reads them."""
    return np.asarray(Image.open(io.BytesIO(file.tobytes())))


def decoded(source: Source, index: int = 0) -> npt.NDArray[np.uint8]:
    """Return the pixels of a sample, as the loader decodes them: uint8 [height, width, 3]."""
    data = source[index][0]
    return make_decoder("torchvision").decode(data, probe(data)).permute(1, 2, 0).numpy()


def photo_files(root: Path, num_classes: int = 2, per_class: int = 8) -> list[tuple[bytes, int]]:
    """Write real JPEG photographs under ``root``; return their bytes and classes."""
    paths = write_photo_folder(root, num_classes=num_classes, per_class=per_class, seed=3)
    return [(path.read_bytes(), int(path.parent.name.removeprefix("class_"))) for path in paths]
