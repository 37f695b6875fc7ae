"""Readers of each format: our sources, and reference readers for comparison.

Every reader yields pairs of an image's bytes and its label, as an object that holds bytes and an
int. Nothing is decoded.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import dali_readers
from benchmarks.format_writers import CAFFE, FOLDER, PARQUET, RECORDIO, TAR, TFRECORD
from benchmarks.results import is_installed
from benchmarks.source_files import SourceFiles
from stateful_gpu_loader.datasets.caffe2_lmdb import Caffe2LMDBSource
from stateful_gpu_loader.datasets.caffe_lmdb import CaffeLMDBSource
from stateful_gpu_loader.datasets.folder import FolderSource
from stateful_gpu_loader.datasets.parquet.source import ParquetSource
from stateful_gpu_loader.datasets.recordio import RecordIOSource
from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.datasets.tar.source import TarSource
from stateful_gpu_loader.datasets.tfrecord import TFRecordSource
from stateful_gpu_loader.samplers.blocks import Blocks
from stateful_gpu_loader.samplers.shuffled import ShuffledSampler

Sample = tuple[Any, int]

NUM_THREADS = 2
PARQUET_CACHE = 4
"""Ratio of the images' size to that of the cache of row groups."""
WINDOW = 4
"""Number of row groups mixed at a time."""

_BLOCK = 64
"""Number of samples that a thread reads at a time."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One way to read the files of one format."""

    name: str
    """Key of its measurement, together with the format's key."""
    label: str
    begin: Callable[[], Iterator[Sample]]
    """Opens the files again; the samples end with an epoch, or never."""
    is_reference: bool = False
    is_shuffled: bool = False
    has_threads: bool = False


def open_source(name: str, files: SourceFiles, cache_dir: str | None = None) -> Source:
    """Return our source over all files of a format.

    Args:
        cache_dir: folder for the indices of tars and records; None keeps them next to the files.
    """
    paths = files.paths(name)
    if name == FOLDER:
        return FolderSource(paths[0])
    if name == PARQUET:
        return ParquetSource(
            paths, image="image.bytes", cache_bytes=files.num_bytes // PARQUET_CACHE
        )
    if name == TAR:
        return TarSource(paths, image="jpg", cache_dir=cache_dir)
    if name == TFRECORD:
        return TFRecordSource(paths, cache_dir=cache_dir)
    if name == RECORDIO:
        return RecordIOSource(paths, cache_dir=cache_dir)
    return CaffeLMDBSource(paths) if name == CAFFE else Caffe2LMDBSource(paths)


def our_readers(name: str, files: SourceFiles) -> list[Reader]:
    """Return our readers: in order with one thread and with two, and shuffled."""

    def begin(order: Callable[[Source], Sequence[int]], num_threads: int = 1) -> Iterator[Sample]:
        source = open_source(name, files)
        indices = order(source)
        return _read(source, indices) if num_threads == 1 else _read_ahead(source, indices)

    threads = functools.partial(begin, _in_order, NUM_THREADS)
    readers = [
        Reader(name="ours", label="ours", begin=functools.partial(begin, _in_order)),
        Reader(
            name="ours-threads",
            label=f"ours, {NUM_THREADS} threads",
            begin=threads,
            has_threads=True,
        ),
        Reader(
            name="ours-shuffled",
            label="ours, shuffled",
            begin=functools.partial(begin, _shuffled),
            is_shuffled=True,
        ),
    ]
    if name == PARQUET:
        readers.append(
            Reader(
                name="ours-blocks",
                label=f"ours, shuffled in windows of {WINDOW} row groups",
                begin=functools.partial(begin, _in_blocks),
                is_shuffled=True,
            )
        )
    return readers


def references(name: str, files: SourceFiles) -> list[Reader]:
    """Return the installed readers that the format's own users use."""
    found = []
    if name == FOLDER and is_installed("torchvision"):
        found += _both("torchvision", "torchvision's ImageFolder", _image_folder, name, files)
    if name == TAR and is_installed("webdataset"):
        found += _both("webdataset", "webdataset", _webdataset, name, files)
    if name == PARQUET and is_installed("pyarrow"):
        begin = functools.partial(_pyarrow, files)
        found.append(Reader(name="pyarrow", label="pyarrow", begin=begin, is_reference=True))
    if name not in (FOLDER, PARQUET) and is_installed("nvidia.dali"):
        found += _both("dali", "DALI", dali_readers.read, name, files)
    return found


def webdataset_samples(paths: Sequence[str], shuffle_buffer: int = 0) -> Any:
    """Return webdataset's pairs of undecoded members, as in its documentation."""
    import webdataset

    dataset = webdataset.WebDataset(list(paths), shardshuffle=False)
    if shuffle_buffer:
        dataset = dataset.shuffle(shuffle_buffer)
    return dataset.to_tuple("jpg", "cls")


def _both(
    key: str,
    label: str,
    read: Callable[..., Iterator[Sample]],
    name: str,
    files: SourceFiles,
) -> list[Reader]:
    return [
        Reader(
            name=f"{key}-shuffled" if shuffled else key,
            label=f"{label}, shuffled" if shuffled else label,
            begin=functools.partial(read, name, files, shuffled=shuffled),
            is_reference=True,
            is_shuffled=shuffled,
        )
        for shuffled in (False, True)
    ]


def _in_order(source: Source) -> Sequence[int]:
    return range(len(source))


def _shuffled(source: Source) -> Sequence[int]:
    return list(ShuffledSampler(source, seed=1))


def _in_blocks(source: Source) -> Sequence[int]:
    blocks = Blocks.of(source, window=WINDOW)  # type: ignore[arg-type]
    return list(ShuffledSampler(source, seed=1, locality=blocks))


def _read(source: Source, indices: Sequence[int]) -> Iterator[Sample]:
    for index in indices:
        sample = source.read(index)
        yield sample.data, sample.target


def _read_ahead(source: Source, indices: Sequence[int]) -> Iterator[Sample]:
    """Read in threads, a few blocks ahead, like the loader's worker threads."""

    def block(start: int) -> list[Sample]:
        return list(_read(source, indices[start : start + _BLOCK]))

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        waiting: deque[Future[list[Sample]]] = deque()
        for start in range(0, len(indices), _BLOCK):
            waiting.append(pool.submit(block, start))
            if len(waiting) > 2 * NUM_THREADS:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _image_folder(name: str, files: SourceFiles, *, shuffled: bool) -> Iterator[Sample]:
    from torchvision.datasets import ImageFolder

    dataset = ImageFolder(files.paths(name)[0], loader=_bytes_of)
    n = len(dataset)
    order = np.random.default_rng(1).permutation(n).tolist() if shuffled else range(n)
    for index in order:
        yield dataset[index]


def _webdataset(name: str, files: SourceFiles, *, shuffled: bool) -> Iterator[Sample]:
    buffer = dali_readers.SHUFFLE_BUFFER if shuffled else 0
    for data, label in webdataset_samples(files.paths(name), buffer):
        yield data, int(label)


def _pyarrow(files: SourceFiles) -> Iterator[Sample]:
    import pyarrow.parquet

    for path in files.paths(PARQUET):
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BLOCK, columns=["image.bytes", "label"]):
                for row in batch.to_pylist():
                    yield row["image"]["bytes"], row["label"]


def _bytes_of(path: str) -> bytes:
    return Path(path).read_bytes()
