"""LaneReader: reads the samples of one lane from a cursor on, shuffled in windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from stateful_gpu_loader.datasets.sharded import ShardedDataset
from stateful_gpu_loader.engine.makers.own_generators import SampleGenerators
from stateful_gpu_loader.engine.readers.lane_shards import LaneAddress, LaneShards
from stateful_gpu_loader.engine.readers.reading import ReadySample
from stateful_gpu_loader.randomness.draw_rule import DrawRule
from stateful_gpu_loader.randomness.philox import Stream, sample_seeds
from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.samplers.draws import permutations_of_seeds
from stateful_gpu_loader.state.bad_samples import FoundBad
from stateful_gpu_loader.state.lane_cursor import LaneCursor

_DRAWN_TOGETHER = 256
"""Samples, in small windows whose orders are drawn together."""


class Taken(NamedTuple):
    """Consecutive samples of a lane."""

    samples: list[ReadySample]
    positions: IndexArray
    """Keys of the samples, int64 [n]."""
    cursor: LaneCursor
    """Position of the lane after them."""


class LaneReader:
    """Yields a lane's samples in batches, determined by its address and cursor.

    A window is always read from its beginning, even if part of it was delivered before, so no
    shuffle buffer needs to be saved.

    Args:
        dataset: the sharded dataset.
        address: the lane.
        cursor: where to begin.
        window: number of samples that are shuffled together; 0 leaves them in order.
        drops_bad: leave out the rest of a damaged shard instead of raising an exception.
        rule: notes which of the seeded samples draw.
        generators: generators that are seeded for each sample.
        is_second: whether the lane was read from here before, and damage was reported then.
    """

    def __init__(
        self,
        dataset: ShardedDataset,
        address: LaneAddress,
        cursor: LaneCursor,
        *,
        window: int,
        drops_bad: bool,
        rule: DrawRule,
        generators: SampleGenerators,
        is_second: bool = False,
    ) -> None:
        self._address = address
        self._cursor = cursor
        self._window_size = window
        self._is_second = is_second
        self._shards = LaneShards(
            dataset,
            address,
            shard=cursor.shard,
            offset=cursor.offset,
            ordinal=cursor.window_start,
            drops_bad=drops_bad,
            rule=rule,
            generators=generators,
        )
        self._begin = self._shards.place
        """Shard and offset where the present window begins."""
        self._reading: list[ReadySample] = []
        """Samples of the window that is being read."""
        self._length = 0
        """Number of samples in the present window."""
        self._left: list[ReadySample] = []
        """Samples of the window that are still to come."""
        self._held: list[ReadySample] = []
        """Samples taken from windows and not yet returned."""
        self._orders: dict[int, list[int]] = {}
        """Orders of this window and of the next ones, by the ordinals of their first samples."""
        self._to_skip = cursor.taken
        self.is_at_cursor = True
        """Whether a reader that begins at the cursor would read the same as this one; not once a
        call has failed, which keeps what it had read, and passes what has raised."""

    @property
    def cursor(self) -> LaneCursor:
        """Position of the lane after the samples taken so far."""
        return self._cursor

    @property
    def num_left(self) -> int:
        """Number of samples left in the lane, once :meth:`take` has found them too few."""
        return len(self._held)

    def take(
        self, n: int, check: Callable[[], None], *, turns: int, is_seeded: bool = True
    ) -> Taken | None:
        """Return the next n samples; None if fewer are left, which are then kept.

        Args:
            n: number of samples.
            check: called between samples.
            turns: number of the lane's turns including this one.
            is_seeded: whether the global generators are seeded for each sample that is read.

        Raises:
            Exception: as :meth:`LaneShards.read`; samples that were read are kept for the next
                call.
        """
        self._shards.is_seeded, self.is_at_cursor = is_seeded, False
        while len(self._held) < n:
            check()
            wanted = n - len(self._held)
            if not self._left and not self._read_window(wanted, check):
                return None
            self._held += self._left[:wanted]
            del self._left[:wanted]
        samples, self._held = self._held, []
        start = self._cursor.count
        shard, offset = self._begin if self._left else self._shards.place
        self._cursor = LaneCursor(
            turns=turns,
            count=start + n,
            shard=shard,
            offset=offset,
            taken=self._length - len(self._left) if self._left else 0,
        )
        self.is_at_cursor = True
        first = self._address.position(start)
        positions = np.arange(first, first + n, dtype=np.int64)
        return Taken(samples=samples, positions=positions, cursor=self._cursor)

    def end(self) -> LaneCursor:
        """Return the position of the lane at its end."""
        before = self._cursor
        return LaneCursor(turns=before.turns, count=before.count, shard=self._shards.end)

    def found(self) -> tuple[FoundBad, ...]:
        """Return the bad samples that were left out since the last call."""
        return self._shards.found()

    def close(self) -> None:
        """Close the dataset's generator, which may hold a file open."""
        self._shards.close()

    def _read_window(self, wanted: int, check: Callable[[], None]) -> bool:
        """Read the next window, or ``wanted`` samples if nothing is shuffled; False at the end."""
        size = self._window_size or wanted
        if not self._reading:
            self._begin = self._shards.place
        start = self._shards.ordinal - len(self._reading)
        # Damage within a window was reported before its first sample was delivered.
        self._shards.is_told = self._is_second or self._to_skip > 0
        self._shards.read(self._reading, size, check)
        window, self._reading = self._reading, []
        n = len(window)
        if self._window_size and n > 1:
            window = [window[number] for number in self._order_of(start, n)]
        self._length, self._left = n, window[self._to_skip :]
        self._to_skip = 0
        return n > 0

    def _order_of(self, start: int, n: int) -> list[int]:
        """Return the order of the n samples of a window.

        Those of small windows are drawn together, as each alone would cost more than its samples.

        Args:
            start: ordinal of its first sample.
        """
        if start not in self._orders or len(self._orders[start]) != n:
            address = self._address
            starts = range(start, start + max(n, _DRAWN_TOGETHER), n)
            places = [address.position(ordinal) for ordinal in starts]
            seeds = sample_seeds(address.seed, address.epoch, places, Stream.SHARDS)
            orders = permutations_of_seeds(n, seeds).tolist()
            self._orders = dict(zip(starts, orders, strict=True))
        return self._orders[start]
