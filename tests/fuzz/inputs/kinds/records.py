"""Files of framed records (TFRecord and RecordIO), their indices, and the messages in records."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from stateful_gpu_loader import RecordIOSource, TFRecordSource
from stateful_gpu_loader.datasets import RecordIOShards, TFRecordShards, caffe2_lmdb, caffe_lmdb
from stateful_gpu_loader.datasets.framed import Place
from stateful_gpu_loader.datasets.recordio import RecordIOImages
from stateful_gpu_loader.datasets.tfrecord import ExampleImages
from tests.datasets.lmdb.lmdb_files import encoded_datum, raw_datum, tensor, tensors
from tests.datasets.record_files import (
    MAGIC,
    image_record,
    imagenet_example,
    recordio_frame,
    tfrecord_frame,
)
from tests.datasets.record_files import example as example_of
from tests.fuzz.inputs.kind import Broken, Kind

_IMAGES = (b"first", b"second" * 9, b"", MAGIC + b"\0" * 8)
_PIXELS = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
_PLACE = Place("a.file", 0, 0)


def _frames(framing: str) -> list[bytes]:
    if framing == "tfrecord":
        return [
            tfrecord_frame(example_of(imagenet_example(image, i)))
            for i, image in enumerate(_IMAGES)
        ]
    return [recordio_frame(image_record(image, i, id=i)) for i, image in enumerate(_IMAGES)]


def _index(framing: str) -> bytes:
    at, lines = 0, []
    for number, frame in enumerate(_frames(framing)):
        line = f"{at} {len(frame)}" if framing == "tfrecord" else f"{number}\t{at}"
        lines.append(line + "\n")
        at += len(frame)
    return "".join(lines).encode()


class _Framed(Kind):
    refusals = (ValueError, OSError)
    framing: ClassVar[str]
    source: ClassVar[Any]
    shards: ClassVar[Any]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._path, self._cache = folder / "a.file", folder / "cache"
        self.examples = [b"".join(_frames(self.framing)), b"".join(_frames(self.framing)[:1])]
        self._sound = {sample for content in self.examples for sample in self._streamed(content)}

    def read(self, content: bytes, example: int) -> None:
        refused, found = None, []
        try:
            found = self._streamed(content)
        except ValueError as error:
            refused = error
        for path in self._cache.iterdir() if self._cache.is_dir() else ():
            path.unlink()
        source = self.source(self._path, cache_dir=self._cache)
        for index in range(len(source)):
            sample = source.read(index)
            found.append((sample.data.numpy().tobytes(), str(sample.target)))
            source.record(index)
        if self.framing == "tfrecord" and not self._sound.issuperset(found):
            raise Broken("a record was read that was never written")
        if refused is not None:
            raise refused

    def _streamed(self, content: bytes) -> list[tuple[bytes, str]]:
        self._path.write_bytes(content)
        found = []
        for sample, _ in self.shards(self._path).read_shard("a.file", 0):
            if isinstance(sample, ValueError):
                raise sample
            found.append((sample.data.numpy().tobytes(), str(sample.target)))
        return found


class TFRecords(_Framed):
    name = "TFRecord"
    share = 1.5
    framing, source, shards = "tfrecord", TFRecordSource, TFRecordShards


class RecordIOs(_Framed):
    name = "RecordIO"
    share = 1.5
    framing, source, shards = "recordio", RecordIOSource, RecordIOShards


class _Indexed(Kind):
    """A sound file, and a text with the offsets of its records."""

    framing: ClassVar[str]
    source: ClassVar[Any]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._path, self._index = folder / "a.file", folder / "a.idx"
        self._path.write_bytes(b"".join(_frames(self.framing)))
        self.examples = [_index(self.framing)]

    def read(self, content: bytes, example: int) -> None:
        self._index.write_bytes(content)
        source = self.source(self._path, index_paths=self._index)
        for index in range(len(source)):
            source.read(index)


class TFRecordIndices(_Indexed):
    name = "TFRecord index"
    share = 3
    framing, source = "tfrecord", TFRecordSource


class RecordIOIndices(_Indexed):
    name = "RecordIO index"
    share = 3
    framing, source = "recordio", RecordIOSource


class _Messages(Kind):
    """Messages in records of a file whose frames are sound."""

    names_remedy = False  # The source's error, made of this one, has one.


class Examples(_Messages):
    name = "tf.train.Example"
    share = 8

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        images = ExampleImages("image/encoded", ["image/class/label", "image/class/text"], ())
        self._images = images
        self.examples = [example_of(imagenet_example(image, 5)) for image in _IMAGES[:2]]

    def read(self, content: bytes, example: int) -> None:
        payload = np.frombuffer(content, dtype=np.uint8).copy()
        self._images.record(payload, _PLACE)
        self._images.take(payload, _PLACE, 0)


class ImageRecords(_Messages):
    name = "RecordIO image"
    share = 8

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._images = RecordIOImages("class")
        self.examples = [image_record(b"image", 3.0, id=4), image_record(b"image", [1.0, 2.0, 3.0])]

    def read(self, content: bytes, example: int) -> None:
        payload = np.frombuffer(content, dtype=np.uint8).copy()
        self._images.record(payload, _PLACE)
        if example == 0:
            self._images.take(payload, _PLACE, 0)


class CaffeRecords(_Messages):
    name = "Caffe Datum"
    share = 8

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.examples = [
            encoded_datum(b"image", 3),
            raw_datum(_PIXELS, 3),
            raw_datum(_PIXELS[..., 0], 1),
        ]

    def read(self, content: bytes, example: int) -> None:
        caffe_lmdb.image_file(caffe_lmdb.parse_datum(content))


class Caffe2Records(_Messages):
    name = "Caffe2 TensorProtos"
    share = 8

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        label = tensor("int32", [7])
        self.examples = [
            tensors(tensor("string", b"image"), label),
            tensors(tensor("byte", _PIXELS.tobytes(), dims=_PIXELS.shape), label),
            tensors(tensor("float", [0.5, 1.5]), tensor("int64", [1, 2, 3], packed=False)),
        ]

    def read(self, content: bytes, example: int) -> None:
        image, *others = [*caffe2_lmdb.parse_tensors(content), None]
        for each in others:
            if each is not None:
                each.values()
        if image is not None and example < 2:
            caffe2_lmdb.image_file(image)


KINDS = (
    TFRecords,
    RecordIOs,
    TFRecordIndices,
    RecordIOIndices,
    Examples,
    ImageRecords,
    CaffeRecords,
    Caffe2Records,
)
