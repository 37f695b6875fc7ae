"""RowGroupUse: says once that row groups are decoded again and again for a few of their rows."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from stateful_gpu_loader.datasets.parquet.rows import Rows

IN_TURN = 64
"""Row groups, one dropped after the other, from which it is no accident: a few samples that
somebody looks at make fewer. A resume late in a window of blocks leaves as many as the window has
with few of their rows to read; but all of these were held at once."""
LEAST_SHARE = 8
"""A row group is wasted if fewer than one in so many of its rows were read."""


@dataclass
class RowGroupUse:
    """Counts the decoded row groups that were dropped for want of room before they were used.

    Reads are counted and not timed, so the same order of reads always gives the same warning: one
    for each source in each process, worker processes included.
    """

    cache_bytes: int
    num_groups: int
    """Row groups of the source."""
    wasted: int = 0
    """Row groups dropped in turn, up to now, that had hardly been used."""
    wasted_bytes: int = 0
    """That these took in memory."""
    has_warned: bool = False

    def __call__(self, rows: Rows, uses: int) -> None:
        """Note that a row group is dropped after ``uses`` of its rows were read."""
        if self.has_warned:
            return
        if uses * LEAST_SHARE >= len(rows):
            self.wasted = self.wasted_bytes = 0
            return
        self.wasted, self.wasted_bytes = self.wasted + 1, self.wasted_bytes + rows.num_bytes
        if self.wasted < IN_TURN or self.wasted_bytes <= self.cache_bytes:
            return
        self.has_warned = True
        warnings.warn(
            f"{self.wasted} row groups of a ParquetSource, one after the other, were decoded and "
            f"dropped again before one in {LEAST_SHARE} of their rows was read: the last has "
            f"{len(rows)} rows, of which {uses} were read. A row is read with its whole row group, "
            f"of {rows.num_bytes / 2**20:.1f} MiB here, and cache_bytes={self.cache_bytes} keeps "
            f"some {self.cache_bytes // max(1, rows.num_bytes)} of {self.num_groups}; so decoding "
            "takes most of the time. Remedy: shuffle a few row groups at a time, "
            "sampler=ShuffledSampler(source, locality=Blocks.of(source, window=...)), with "
            "cache_bytes for all row groups of a window; worker processes have a cache each, and "
            "worker threads share one. Or keep the decoded images, PreparedSource(source, "
            "directory); or write smaller row groups, or read with ParquetShards",
            stacklevel=2,
        )
