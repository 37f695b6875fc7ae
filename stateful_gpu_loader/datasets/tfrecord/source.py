"""TFRecordSource: TFRecord files of tf.train.Example, by index, without TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from stateful_gpu_loader.datasets.framed.framing import Offsets
from stateful_gpu_loader.datasets.framed.source import AnyPaths, FramedSource, one_index_each
from stateful_gpu_loader.datasets.storage.paths import AnyPath, as_paths
from stateful_gpu_loader.datasets.storage.streams import open_stream
from stateful_gpu_loader.datasets.target_choice import Target
from stateful_gpu_loader.datasets.tfrecord.crc32c import require_crc32c
from stateful_gpu_loader.datasets.tfrecord.example_images import ExampleImages, record_of
from stateful_gpu_loader.datasets.tfrecord.records import TFRecordFraming, parse_index
from stateful_gpu_loader.records import EncodedSample


class TFRecordSource(FramedSource):
    """Encoded images and their labels in TFRecord files, local or by URL.

    An index is built once, by reading each record's header, and kept; or the files' own are given.

    Args:
        paths: one file or several, as ``as_paths`` takes them.
        image: the feature with the encoded image; of several names the first that a record has.
        target: the feature that is the target, several for a tuple, a dict of new names for a
            dict, None for the index. One value is an int, a float32 or bytes, as it is stored;
            several are int64 [n], float32 [n] or a list of bytes.
        variable_length: features of the target that are arrays (or lists) even where a record has
            one value, such as ``"image/object/bbox/xmin"``.
        index_paths: an index for each file, as DALI's ``tfrecord2idx`` writes them.
        cache_dir: where built indices are kept; None is beside the files.
        check_crc: check both checksums of a record when it is read; needs google-crc32c.

    Raises:
        OSError: a file is not there or cannot be read.
        ValueError: a file is damaged, compressed or unlike its index, or no file has a record.
        MissingDependency: google-crc32c is not installed, and ``check_crc`` is left on.

    >>> import os, tempfile
    >>> feature = bytes.fromhex("0a04") + b"jpeg"
    >>> entries = b"".join(
    ...     bytes([10, len(entry)]) + entry for entry in (
    ...         bytes([10, 13]) + b"image/encoded" + bytes([18, 8, 10, 6]) + feature,
    ...         bytes([10, 17]) + b"image/class/label" + bytes([18, 5, 26, 3, 10, 1, 7])))
    >>> example = bytes([10, len(entries)]) + entries
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "train.tfrecord")
    ...     with open(path, "wb") as file:
    ...         _ = file.write(len(example).to_bytes(8, "little") + bytes(4) + example + bytes(4))
    ...     source = TFRecordSource(path, check_crc=False)
    ...     data, target = source[0]
    ...     len(source), bytes(data.numpy()), target, sorted(source.record(0))
    (1, b'jpeg', 7, ['image/class/label', 'image/encoded'])
    """

    def __init__(
        self,
        paths: AnyPaths,
        *,
        image: str | Sequence[str] = "image/encoded",
        target: Target = "image/class/label",
        variable_length: str | Sequence[str] = (),
        index_paths: AnyPaths | None = None,
        cache_dir: AnyPath | None = None,
        check_crc: bool = True,
    ) -> None:
        if check_crc:
            require_crc32c()
        self._images = ExampleImages(image, target, variable_length)
        files = as_paths(paths)
        indices = None if index_paths is None else one_index_each(index_paths, files)
        super().__init__(
            files,
            TFRecordFraming(check_crc=check_crc),
            given=None if indices is None else partial(_read_indices, indices),
            cache_dir=cache_dir,
            stream_class="TFRecordShards",
        )

    def read(self, index: int) -> EncodedSample:
        """The encoded image and the target; the image's bytes keep the whole record in memory.

        Raises:
            OSError: of the kind that the system reports; it names the path and the index.
            ValueError: the record is damaged, is no Example or lacks a feature.
        """
        payload, place = self._payload(index)
        data, target = self._images.take(payload, place, index)
        return EncodedSample(data, target, f"{place.path}, record {place.record}")

    def record(self, index: int) -> dict[str, Any]:
        """All features of the record at ``0 <= index < len(self)``, by name.

        Lists of bytes, float32 [n] and int64 [n]; an empty list where a feature has no kind.
        """
        return record_of(*self._payload(index))

    def _choice(self) -> str:
        return repr(self._images)


def _read_indices(indices: list[str], sizes: list[int]) -> list[Offsets]:
    found = []
    for path in indices:
        with open_stream(path) as stream:
            found.append(parse_index(stream.read(), path))
    return found
