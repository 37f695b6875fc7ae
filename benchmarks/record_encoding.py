"""Records as TensorFlow, MXNet and Caffe write them, encoded field by field without them."""

from __future__ import annotations

import struct

MAGIC = struct.pack("<I", 0xCED7230A)
"""First bytes of each part of a RecordIO record."""

_STRING, _INT32 = 4, 2
"""Types of a TensorProto."""


def example(image: bytes, label: int) -> bytes:
    """Encode a tf.train.Example with the two features of every ImageNet record.

    >>> len(example(b"jpeg", 7))
    57
    """
    encoded = _delimited(1, _delimited(1, image))
    number = _delimited(3, _delimited(1, _varint(label)))
    entries = [(b"image/encoded", encoded), (b"image/class/label", number)]
    return _delimited(
        1,
        b"".join(
            _delimited(1, _delimited(1, name) + _delimited(2, value)) for name, value in entries
        ),
    )


def tfrecord(payload: bytes) -> bytes:
    """Encode a record of a TFRecord file: length and payload, each with a checksum."""
    length = struct.pack("<Q", len(payload))
    return b"".join([length, _masked_crc(length), payload, _masked_crc(payload)])


def recordio(image: bytes, label: int, number: int) -> bytes:
    """Encode a record of an MXNet .rec file, as ``im2rec`` packs an image with one label.

    >>> recordio(b"jpeg", 7, number=0)[:12].hex()
    '0a23d7ce1c00000000000000'
    """
    payload = struct.pack("<IfQQ", 0, label, number, 0) + image
    cuts = [at for at in range(0, len(payload) & ~3, 4) if payload.startswith(MAGIC, at)]
    if not cuts:
        return _part(0, payload)
    # Bytes that look like the beginning of a record are cut out.
    starts, ends = [0, *(cut + 4 for cut in cuts)], [*cuts, len(payload)]
    kinds = [1, *[2] * (len(cuts) - 1), 3]
    parts = zip(kinds, starts, ends, strict=True)
    return b"".join(_part(kind, payload[start:end]) for kind, start, end in parts)


def datum(image: bytes, label: int) -> bytes:
    """Encode Caffe's Datum of an image file.

    >>> datum(b"jpeg", 7).hex()
    '22046a70656728073801'
    """
    return _delimited(4, image) + _number(5, label) + _number(7, 1)


def tensors(image: bytes, label: int) -> bytes:
    """Encode Caffe2's TensorProtos of an image file and its class.

    >>> tensors(b"jpeg", 7).hex()
    '0a08100432046a7065670a051002220107'
    """
    as_string = _number(2, _STRING) + _delimited(6, image)
    as_int32 = _number(2, _INT32) + _delimited(4, _varint(label))
    return _delimited(1, as_string) + _delimited(1, as_int32)


def _part(kind: int, content: bytes) -> bytes:
    length = struct.pack("<I", kind << 29 | len(content))
    return b"".join([MAGIC, length, content, bytes(-len(content) % 4)])


def _masked_crc(data: bytes) -> bytes:
    import google_crc32c

    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _delimited(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])
