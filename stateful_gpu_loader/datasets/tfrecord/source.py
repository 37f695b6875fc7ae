"""TFRecordSource and TFRecordShards: TFRecord files of tf.train.Example, without TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stateful_gpu_loader.datasets.file_shards import Counts
from stateful_gpu_loader.datasets.framed.framing import Offsets
from stateful_gpu_loader.datasets.framed.shards import FramedShards
from stateful_gpu_loader.datasets.framed.source import AnyPaths, FramedSource, read_indices
from stateful_gpu_loader.datasets.storage.paths import AnyPath, as_paths
from stateful_gpu_loader.datasets.target_choice import Target
from stateful_gpu_loader.datasets.tfrecord.images import ExampleImages
from stateful_gpu_loader.datasets.tfrecord.records import (
    TFRecordFraming,
    parse_index,
    require_crc32c,
)


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
        indices = None if index_paths is None else as_paths(index_paths)
        super().__init__(
            paths,
            TFRecordFraming(check_crc=check_crc),
            ExampleImages(image, target, variable_length),
            given=None if indices is None else partial(_offsets, indices),
            cache_dir=cache_dir,
            stream_class="TFRecordShards",
        )


class TFRecordShards(FramedShards):
    """Encoded images and their labels, streamed from TFRecord files without an index.

    Args:
        paths: local or URLs, as ``as_paths`` takes them; .gz, .zst, .bz2 and .xz by their names.
        image: the feature with the encoded image; of several names the first that a record has.
        target: as for TFRecordSource; None is where the record lies: its offset in bytes, or its
            number in a compressed file.
        variable_length: features of the target that are arrays (or lists) even where a record has
            one value.
        check_crc: check both checksums of each record; needs google-crc32c.
        counts: how many samples each shard has, by its name or in order; None is unknown.
        num_lanes, shuffle_buffer: as of :class:`ShardedDataset`.

    Raises:
        ValueError: no path, one twice, or counts that do not fit the shards.
        MissingDependency: google-crc32c is not installed, and ``check_crc`` is left on.

    >>> import os, tempfile
    >>> feature = bytes.fromhex("0a04") + b"jpeg"
    >>> entry = bytes([10, 13]) + b"image/encoded" + bytes([18, 8, 10, 6]) + feature
    >>> example = bytes([10, len(entry) + 2, 10, len(entry)]) + entry
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "train.tfrecord")
    ...     with open(path, "wb") as file:
    ...         _ = file.write(len(example).to_bytes(8, "little") + bytes(4) + example + bytes(4))
    ...     shards = TFRecordShards(path, target=None, check_crc=False)
    ...     [(bytes(data.numpy()), target) for data, target in shards]
    [(b'jpeg', 0)]
    """

    def __init__(
        self,
        paths: AnyPaths,
        *,
        image: str | Sequence[str] = "image/encoded",
        target: Target = "image/class/label",
        variable_length: str | Sequence[str] = (),
        check_crc: bool = True,
        counts: Counts = None,
        num_lanes: int | None = None,
        shuffle_buffer: int = FramedShards.shuffle_buffer,
    ) -> None:
        if check_crc:
            require_crc32c()
        super().__init__(
            paths,
            TFRecordFraming(check_crc=check_crc),
            ExampleImages(image, target, variable_length),
            counts=counts,
            num_lanes=num_lanes,
            shuffle_buffer=shuffle_buffer,
        )


def _offsets(index_paths: list[str], paths: list[str], sizes: list[int]) -> list[Offsets]:
    return read_indices(index_paths, paths, parse_index)
