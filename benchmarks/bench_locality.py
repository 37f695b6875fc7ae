"""Savings of orders by blocks: reads of tars and Parquet files under several shuffled orders.

A window of one, four or sixteen blocks (a tar, a row group) is mixed at a time, compared with a
shuffle of everything and with no shuffle. Reads are counted where sources ask the storage for
bytes. The rates are those of files in the system's cache, where a tar's order costs almost nothing.
On a disk or a network, each of the counted places is a wait.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from benchmarks.arguments import Arguments, parse
from benchmarks.format_writers import PARQUET, TAR
from benchmarks.harness import Contestant, measured, run_apart
from benchmarks.results import Aim, Measurement, compared
from benchmarks.source_files import FORMATS, ROWS, photograph_files, under_more_names
from stateful_gpu_loader.datasets.parquet.source import ParquetSource
from stateful_gpu_loader.datasets.storage.open_files import OpenFiles
from stateful_gpu_loader.datasets.tar.source import TarSource
from stateful_gpu_loader.samplers.blocks import Blocks
from stateful_gpu_loader.samplers.shuffled import ShuffledSampler

READ_FORMATS = (TAR, PARQUET)
IN_ORDER, EVERYTHING = "in order", "everything shuffled"
WINDOWS = {"window of 1": 1, "window of 4": 4, "window of 16": 16}
"""Number of blocks mixed at a time, by label."""
ORDERS = (IN_ORDER, *WINDOWS, EVERYTHING)
WHATS = {
    "reads": "reads a sample",
    "places": "blocks of 4 MiB touched in 1,000 samples",
    "bytes": "bytes read for a byte of image",
    "rate": "samples/s",
}

_BLOCK = 4 << 20
_COUNTED = 1000
_TIMES = 8
"""Number of names of each file, for a data set much larger than a window."""
_CACHE_BYTES = 160 << 20
"""Size of the cache of row groups: as much as the largest window takes."""


def measurement_name(what: str, name: str, order: str) -> str:
    """Key of a measurement; ``what`` is one of ``WHATS``."""
    return f"{what} {name} {order}"


def main(given: Sequence[str] | None = None) -> None:
    arguments = parse(__doc__, rounds=7, given=given)
    num_samples, num_images = (192, 12) if arguments.quick else (2048, 256)
    files = photograph_files(num_samples, num_images, arguments.data)
    measurements = []
    with tempfile.TemporaryDirectory() as folder:
        for name in READ_FORMATS:
            paths = under_more_names(files.paths(name), Path(folder), _TIMES)
            measurements += run_apart(arguments.quick, measure, name, paths, arguments)
    arguments.report(
        "locality",
        settings={
            "num_samples": files.num_samples * _TIMES,
            "samples_a_block": ROWS,
            "windows": list(WINDOWS.values()),
            "cache_bytes": _CACHE_BYTES,
        },
        measurements=measurements,
        comparisons=compared(
            measurements,
            [
                (measurement_name("rate", name, order), measurement_name("rate", name, EVERYTHING))
                for name in READ_FORMATS
                for order in ORDERS[:-1]
            ],
        ),
        aims=[
            # Under a window each byte is read about once, as without shuffling.
            Aim.at_most(found.label, found.values[0], 1.5, "bytes")
            for found in measurements
            if found.name.startswith("bytes") and found.name.endswith(tuple(WINDOWS))
        ],
    )


def measure(name: str, paths: Sequence[str], arguments: Arguments) -> list[Measurement]:
    """Return counts and rates of one format under all orders."""
    found = [
        Measurement(
            measurement_name(what, name, order),
            f"{FORMATS[name]}, {order}, {WHATS[what]}",
            WHATS[what],
            [value],
        )
        for order in ORDERS
        for what, value in _counted(name, paths, order).items()
    ]
    contestants = [
        Contestant(
            measurement_name("rate", name, order),
            f"{FORMATS[name]}, {order}",
            functools.partial(_samples_a_second, name, paths, order, arguments.quick),
        )
        for order in ORDERS
    ]
    title = f"locality, {FORMATS[name]}"
    return found + measured(contestants, arguments, title=title, unit="samples/s")


@dataclass
class Storage:
    """Counts of the sources' requests to the storage."""

    reads: int = 0
    num_bytes: int = 0

    def __post_init__(self) -> None:
        self.places: set[tuple[str, int]] = set()

    def count(self, path: str, offset: int, size: int) -> None:
        """Count one read.

        >>> storage = Storage()
        >>> storage.count("a.tar", offset=(4 << 20) - 1, size=2)
        >>> storage.reads, storage.num_bytes, len(storage.places)
        (1, 2, 2)
        """
        self.reads += 1
        self.num_bytes += size
        first, last = offset // _BLOCK, (offset + max(1, size) - 1) // _BLOCK
        self.places.update((path, block) for block in range(first, last + 1))


def _open(name: str, paths: Sequence[str]) -> TarSource | ParquetSource:
    if name == TAR:
        return TarSource(paths, image="jpg")
    return ParquetSource(paths, image="image.bytes", cache_bytes=_CACHE_BYTES)


def _indices(source: TarSource | ParquetSource, order: str) -> Sequence[int]:
    if order == IN_ORDER:
        return range(len(source))
    blocks = Blocks.of(source, window=WINDOWS[order]) if order in WINDOWS else None
    return list(ShuffledSampler(source, seed=1, locality=blocks))


def _counted(name: str, paths: Sequence[str], order: str) -> dict[str, float]:
    """Count the reads of 1,000 samples in the middle of an epoch, after 1,000 uncounted ones."""
    source = _open(name, paths)
    indices = _indices(source, order)
    middle = len(indices) // 2
    count = min(_COUNTED, middle)
    for index in indices[middle - count : middle]:
        source.read(index)
    storage, size = Storage(), 0
    fill = OpenFiles.fill

    def counting(files: OpenFiles, path: str, offset: int, parts: Sequence[memoryview]) -> None:
        storage.count(path, offset, sum(map(len, parts)))
        fill(files, path, offset, parts)

    with mock.patch.object(OpenFiles, "fill", counting):
        for index in indices[middle : middle + count]:
            size += len(source.read(index).data)
    return {
        "reads": storage.reads / count,
        "places": len(storage.places) / count * 1000,
        "bytes": storage.num_bytes / size,
    }


def _samples_a_second(name: str, paths: Sequence[str], order: str, is_quick: bool) -> float:
    source = _open(name, paths)
    indices = _indices(source, order)
    # Each sample needs a whole row group, which is slow, and few samples are enough to time it.
    count = 256 if name == PARQUET and order == EVERYTHING else 4096
    count = 16 if is_quick else count
    for index in indices[:ROWS]:
        source.read(index)
    started = time.perf_counter()
    for index in indices[ROWS : ROWS + count]:
        source.read(index)
    return count / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
