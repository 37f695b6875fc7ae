"""Samples a second of every reader of one format, in its own process."""

from __future__ import annotations

import functools
import itertools
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.arguments import Arguments
from benchmarks.format_writers import FOLDER
from benchmarks.harness import Contestant, measured, seconds_a_batch
from benchmarks.results import Measurement
from benchmarks.source_files import FORMATS, SourceFiles
from benchmarks.source_readers import Reader, our_readers, references

UNIT, CPU_UNIT = "samples/s", "CPU us/sample"

_MOST_SECONDS = 2.0


def measurement_name(name: str, reader: str) -> str:
    return f"{reader} {name}"


def cpu_name(name: str, reader: str) -> str:
    return f"cpu {measurement_name(name, reader)}"


def measure_rates(name: str, files: SourceFiles, arguments: Arguments) -> list[Measurement]:
    """Measure all readers of a format in turn, after checking that they read the same samples.

    The clock runs over the middle of an epoch, when readers that read ahead are busy. A slow
    reader is timed over fewer samples.

    Raises:
        ValueError: two readers yield different samples.
    """
    readers = [*our_readers(name, files), *references(name, files)]
    _check(readers, files)
    cpu: dict[str, list[float]] = {reader.name: [] for reader in readers}

    def samples_a_second(reader: Reader) -> float:
        rate, seconds = _timed(reader, files.num_samples)
        cpu[reader.name].append(seconds * 1e6)
        return rate

    rates = measured(
        [
            Contestant(
                measurement_name(name, reader.name),
                f"{FORMATS[name]}, {reader.label}",
                functools.partial(samples_a_second, reader),
            )
            for reader in readers
        ],
        arguments,
        title=FORMATS[name],
        unit=UNIT,
    )
    return rates + [
        Measurement(
            cpu_name(name, reader.name),
            f"{FORMATS[name]}, {reader.label}, CPU time",
            CPU_UNIT,
            cpu[reader.name][-arguments.rounds :],  # warm-up rounds come first
        )
        for reader in readers
    ]


def _timed(reader: Reader, num_samples: int) -> tuple[float, float]:
    """Return samples a second, and CPU seconds of all threads a sample."""
    samples = reader.begin()
    # Up to the last block that our threads read before the end.
    warm_up, timed = num_samples // 8, num_samples * 5 // 8
    trial = max(1, timed // 16)
    seconds, cpu = _seconds(samples, warm_up, trial)
    left = timed - trial
    if seconds * left < _MOST_SECONDS:
        seconds, cpu = _seconds(samples, 1, left)
    return 1 / seconds, cpu


def _seconds(samples: Iterator[Any], warm_up: int, timed: int) -> tuple[float, float]:
    """Return wall-clock and CPU seconds a sample."""
    for _ in itertools.islice(samples, warm_up - 1):
        pass
    # The clock starts one sample before the timed ones.
    started = time.process_time()
    seconds = seconds_a_batch(samples, warm_up=1, timed=timed)
    return seconds, (time.process_time() - started) / (timed + 1)


def _check(readers: list[Reader], files: SourceFiles) -> None:
    """Compare all samples of an epoch with those of the folder, in any order."""
    expected = _contents(our_readers(FOLDER, files)[0], files)
    for reader in readers:
        found = _contents(reader, files)
        if found != expected or found.total() != files.num_samples:
            raise ValueError(
                f"{reader.label} reads {found.total()} samples, {len(found)} of them different, "
                f"and the folder has {files.num_samples} and {len(expected)}. Remedy: remove "
                f"{files.root.name}, so that it is written again, or find out why they differ"
            )


def _contents(reader: Reader, files: SourceFiles) -> Counter[tuple[int, int]]:
    """Count each image, by its checksum, with each label."""
    samples = itertools.islice(reader.begin(), files.num_samples)
    return Counter((zlib.crc32(_buffer(data)), label) for data, label in samples)


def _buffer(data: Any) -> Any:
    return data.numpy() if isinstance(data, torch.Tensor) else data
