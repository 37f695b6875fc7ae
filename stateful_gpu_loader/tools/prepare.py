"""Fills the directory of a PreparedSource ahead of training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.data import ConcatDataset, Dataset, Subset

from stateful_gpu_loader.datasets import PreparedSource
from stateful_gpu_loader.loader import StatefulGPULoader

_BATCH = 16
"""Number of images between two reports of progress."""


@dataclass(frozen=True)
class PrepareReport:
    """Content of a directory of prepared images, and the work done."""

    directory: str
    num_images: int
    num_kept: int
    """Number of images in the directory now."""
    num_made: int
    """Number of images that this call decoded."""
    num_bytes: int
    """Size of the directory."""
    bad: dict[int, str]
    """Reasons why images cannot be decoded, by index."""
    is_full: bool
    """Whether the directory had no room for more images."""


def prepare(
    source: PreparedSource,
    *,
    num_workers: int | None = None,
    check: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> PrepareReport:
    """Fill the directory of a source with the images that are missing.

    Other processes may fill or use the directory at the same time. After an interruption, call it
    again.

    Args:
        source: the source.
        num_workers: number of processes that decode; None is one for each core, and with 0 this
            process decodes.
        check: whether to check kept images, and replace those with a wrong checksum.
        on_progress: called with the number of finished images and of all.

    Raises:
        OSError: the source's files cannot be read.

    >>> import tempfile
    >>> import torch
    >>> from stateful_gpu_loader.datasets import Source
    >>> from stateful_gpu_loader.records import EncodedSample
    >>> class White(Source):
    ...     def __len__(self):
    ...         return 2
    ...     def read(self, index):
    ...         data = b"P6 6 4 255 " + bytes([255]) * (6 * 4 * 3)
    ...         return EncodedSample(torch.tensor(list(data), dtype=torch.uint8), index, "white")
    ...     def fingerprint(self):
    ...         return "white"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = prepare(PreparedSource(White(), folder), num_workers=0)
    >>> report.num_kept, report.num_made, report.is_full
    (2, 2, False)
    """
    before = [index for index in range(len(source)) if source.is_kept(index)]
    kept = set(() if check else before)
    indices = [index for index in range(len(source)) if index not in kept]
    workers = len(os.sched_getaffinity(0)) if num_workers is None else num_workers
    loader: StatefulGPULoader[Any] = StatefulGPULoader(
        _Making(source, indices), batch_size=_BATCH, collate_fn=list, num_workers=workers, seed=0
    )
    bad: dict[int, str] = {}
    done, is_full = 0, False
    for batch in loader:
        bad |= {index: reason for index, reason, _ in batch if reason is not None}
        is_full = not all(is_kept for _, reason, is_kept in batch if reason is None)
        done += len(batch)
        if on_progress is not None:
            on_progress(done, len(indices))
        if is_full:
            break
    now = sum(source.is_kept(index) for index in range(len(source)))
    return PrepareReport(
        directory=source.directory,
        num_images=len(source),
        num_kept=now,
        num_made=now - len(before),
        num_bytes=sum(path.stat().st_size for path in Path(source.directory).iterdir()),
        bad=bad,
        is_full=is_full,
    )


def prepared_sources(dataset: Any) -> Iterator[PreparedSource]:
    """Yield the prepared sources in a dataset: itself, or those in a Subset or concatenation."""
    if isinstance(dataset, PreparedSource):
        yield dataset
    elif isinstance(dataset, Subset):
        yield from prepared_sources(dataset.dataset)
    elif isinstance(dataset, ConcatDataset):
        for part in dataset.datasets:
            yield from prepared_sources(part)


class _Making(Dataset[tuple[int, "str | None", bool]]):
    """Makes images; returns (index, reason why it is bad or None, whether it is kept)."""

    def __init__(self, source: PreparedSource, indices: list[int]) -> None:
        self._source = source
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, number: int) -> tuple[int, str | None, bool]:
        index = self._indices[number]
        try:
            self._source.read(index)
        except ValueError as error:
            return index, str(error), False
        return index, None, self._source.is_kept(index)
