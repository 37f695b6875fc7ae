"""Writers of TFRecord and RecordIO files, without TensorFlow or MXNet, which are not installed."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from tests.datasets.lmdb.lmdb_files import message, varint
from tests.images import write_photo_folder

MAGIC = struct.pack("<I", 0xCED7230A)

Feature = Sequence[bytes] | Sequence[int] | Sequence[float]


def delimited(number: int, content: bytes) -> bytes:
    """Return a length-delimited field of a message."""
    return message((number, content))


def feature(values: Feature, *, packed: bool = True) -> bytes:
    """Return a Feature of bytes, floats or ints, by the values' type; of ints without values."""
    if values and isinstance(values[0], bytes):
        return delimited(1, b"".join(delimited(1, value) for value in values))  # type: ignore[arg-type]
    if values and isinstance(values[0], float):
        each = [struct.pack("<f", value) for value in values]
        single, kind = b"\x0d", 2
    else:
        each = [varint(value) for value in values]  # type: ignore[arg-type]
        single, kind = b"\x08", 3
    if packed:
        return delimited(kind, delimited(1, b"".join(each)))
    return delimited(kind, b"".join(single + value for value in each))


def example(features: Mapping[str, Feature]) -> bytes:
    """Return a tf.train.Example as TensorFlow's ``SerializeToString`` writes it."""
    entries = (
        delimited(1, delimited(1, name.encode()) + delimited(2, feature(values)))
        for name, values in features.items()
    )
    return delimited(1, b"".join(entries))


def masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def tfrecord_frame(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return length + masked(length) + payload + masked(payload)


def recordio_frame(payload: bytes) -> bytes:
    """Return a record like dmlc-core's RecordIOWriter: split at each aligned magic number."""
    cuts = [at for at in range(0, len(payload) & ~3, 4) if payload[at : at + 4] == MAGIC]
    starts, ends = [0, *(at + 4 for at in cuts)], [*cuts, len(payload)]
    framed = b""
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        kind = 0 if not cuts else 3 if end == len(payload) else min(number + 1, 2)
        part = payload[start:end]
        framed += MAGIC + struct.pack("<I", kind << 29 | len(part)) + part + bytes(-len(part) % 4)
    return framed


def image_record(image: bytes, label: float | Sequence[float], id: int = 0, id2: int = 0) -> bytes:
    """Return a record like MXNet's ``recordio.pack``."""
    if isinstance(label, (int, float)):
        return struct.pack("<IfQQ", 0, label, id, id2) + image
    labels = np.asarray(label, dtype="<f4")
    return struct.pack("<IfQQ", len(labels), 0, id, id2) + labels.tobytes() + image


def write_records(path: Path, frames: Iterable[bytes]) -> list[tuple[int, int]]:
    """Write records; return the offset and size of each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found, at = [], 0
    with open(path, "wb") as file:
        for frame in frames:
            found.append((at, len(frame)))
            at += file.write(frame)
    return found


def photos(root: Path, num_images: int = 12) -> list[bytes]:
    """Return different JPEG photographs."""
    paths = write_photo_folder(root, num_classes=2, per_class=(num_images + 1) // 2)
    return [path.read_bytes() for path in paths[:num_images]]


def imagenet_example(image: bytes, label: int) -> dict[str, Feature]:
    """Return the features of ImageNet's TFRecords, as TensorFlow's script writes them."""
    return {
        "image/height": [400],
        "image/width": [500],
        "image/colorspace": [b"RGB"],
        "image/channels": [3],
        "image/class/label": [label],
        "image/class/synset": [b"n01440764"],
        "image/class/text": [b"tench, Tinca tinca"],
        "image/format": [b"JPEG"],
        "image/filename": [b"n01440764_10026.JPEG"],
        "image/object/bbox/xmin": [0.1, 0.5][: label % 3],
        "image/encoded": [image],
    }


def write_tfrecords(paths: Sequence[Path], images: Sequence[bytes]) -> list[Path]:
    """Divide images evenly over TFRecords like ImageNet's, labels 0, 1, ...; return index paths.

    The indices are beside the files, as DALI's ``tfrecord2idx`` writes them.
    """
    indices = []
    for path, part in zip(paths, np.array_split(np.arange(len(images)), len(paths)), strict=True):
        frames = (tfrecord_frame(example(imagenet_example(images[i], int(i) * 100))) for i in part)
        lines = [f"{offset} {size}\n" for offset, size in write_records(path, frames)]
        indices.append(path.with_suffix(".idx"))
        indices[-1].write_text("".join(lines))
    return indices


def write_recordio(
    path: Path, images: Sequence[bytes], labels: Sequence[Any] | None = None
) -> Path:
    """Write images, with labels 0, 1, ... by default; return the path of an .idx like im2rec's."""
    frames = [
        recordio_frame(image_record(image, label, id=1000 + number))
        for number, (image, label) in enumerate(
            zip(images, range(len(images)) if labels is None else labels, strict=True)
        )
    ]
    lines = [f"{i}\t{offset}\n" for i, (offset, _) in enumerate(write_records(path, frames))]
    index = path.with_suffix(".idx")
    index.write_text("".join(lines))
    return index
