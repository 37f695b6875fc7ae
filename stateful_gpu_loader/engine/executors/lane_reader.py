"""LaneReader: the samples of one lane, in order, from a cursor on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from stateful_gpu_loader.bad_samples import FoundBad
from stateful_gpu_loader.engine.executors.badness import is_bad, reason_of
from stateful_gpu_loader.engine.executors.salvage import MAX_READS
from stateful_gpu_loader.engine.pipeline import Stopped
from stateful_gpu_loader.engine.seed_block import SeedBlock
from stateful_gpu_loader.errors import BadSample, LoaderError
from stateful_gpu_loader.order import Permutation
from stateful_gpu_loader.randomness import Stream, sample_seeds, seed_global_generators
from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.shards.cursor import LaneCursor
from stateful_gpu_loader.shards.lanes import key_of_lane
from stateful_gpu_loader.shards.sharded_dataset import EncodedShards, ShardedDataset


@dataclass(frozen=True, kw_only=True)
class LaneAddress:
    """One lane of one epoch, read for the ``lap``-th time."""

    seed: int
    epoch: int
    lane: int
    shards: list[str]
    lap: int = 0

    def position(self, ordinal: int) -> int:
        """The key of the lane's sample of this ordinal."""
        return key_of_lane(self.lane, ordinal)


class LaneSample:
    """A sample that was read, and where; what stands for an index."""

    __slots__ = ("name", "sample")

    def __init__(self, name: str, sample: Any) -> None:
        self.name = name
        self.sample = sample

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Consecutive samples of a lane."""

    samples: list[LaneSample]
    positions: IndexArray
    """int64 [n]: their keys."""
    cursor: LaneCursor
    """Behind them."""


class LaneReader:
    """Reads shard after shard, and shuffles in windows; law 1: a function of address and cursor.

    A window is read from where it begins, even if part of it came before: so no buffer is saved.

    Args:
        dataset: whose shards they are.
        address: of the lane.
        cursor: where to begin.
        window: samples that are shuffled together; 0 leaves them in order.
        drops_bad: the rest of a damaged shard is left out, instead of raising why.
    """

    def __init__(
        self,
        dataset: ShardedDataset,
        address: LaneAddress,
        cursor: LaneCursor,
        *,
        window: int,
        drops_bad: bool,
    ) -> None:
        self._dataset = dataset
        self._address = address
        self._cursor = cursor
        self._window_size = window
        self._drops_bad = drops_bad
        self._is_encoded = isinstance(dataset, EncodedShards)
        self._seeds = SeedBlock(Stream.ITERABLE)
        self._end = (address.lap + 1) * len(address.shards)
        self._shard = max(cursor.shard, address.lap * len(address.shards))
        self._offset = cursor.offset if self._shard == cursor.shard else 0
        self._generator: Iterator[tuple[Any, int]] | None = None
        self._read_ordinal = cursor.window_start
        """Of the next sample in the order in which they are read."""
        self._begin = self._shard, self._offset
        self._reading: list[LaneSample] = []
        """Of the window that is being read."""
        self._window: list[LaneSample] = []
        self._left: list[int] = []
        """Numbers in the window that did not come yet, the next one last."""
        self._held: list[LaneSample] = []
        """Taken from windows, and not given out yet."""
        self._to_skip = cursor.taken
        self._num_read: int | None = 0 if self._offset == 0 else None
        """Samples of the present shard so far; None if it was not read from its beginning."""
        self._found: list[FoundBad] = []

    @property
    def num_left(self) -> int:
        """Samples that the lane still has, once :meth:`take` has found that they are too few."""
        return len(self._held)

    def take(self, n: int, check: Callable[[], None]) -> Taken | None:
        """The next n samples; None if the lane has fewer left, and then it keeps them.

        Raises:
            BadSample: encoded images are damaged from here on; what was read before is kept, and
                the next call goes on with the next shard.
            OSError: the storage failed, at each of 3 attempts; the next call tries again.
            Exception: what a user's own ``read_shard`` raised.
        """
        while len(self._held) < n:
            check()
            if not self._left and not self._read_window(n - len(self._held), check):
                return None
            self._held.append(self._window[self._left.pop()])
        samples, self._held = self._held, []
        start = self._cursor.count
        shard, offset = self._begin if self._left else (self._shard, self._offset)
        self._cursor = LaneCursor(
            turns=self._cursor.turns,
            count=start + n,
            shard=shard,
            offset=offset,
            taken=len(self._window) - len(self._left) if self._left else 0,
        )
        first = self._address.position(start)
        positions = np.arange(first, first + n, dtype=np.int64)
        return Taken(samples=samples, positions=positions, cursor=self._cursor)

    def end(self) -> LaneCursor:
        """Where a lane stands that has nothing left."""
        return LaneCursor(turns=self._cursor.turns, count=self._cursor.count, shard=self._end)

    def found(self) -> tuple[FoundBad, ...]:
        """What was left out since this was last asked; reading again finds it again."""
        found, self._found = tuple(self._found), []
        return found

    def _read_window(self, wanted: int, check: Callable[[], None]) -> bool:
        """Read the next window, of what is wanted where nothing is shuffled; False at the end."""
        size = self._window_size or wanted + self._to_skip
        if not self._reading:
            self._begin = self._shard, self._offset
        start = self._read_ordinal - len(self._reading)
        while len(self._reading) < size:
            check()
            sample = self._read()
            if sample is None:
                break
            self._reading.append(sample)
        self._window, self._reading = self._reading, []
        n = len(self._window)
        order = list(range(n))
        if self._window_size and n > 1:
            address = self._address
            places = [address.position(start)]
            (seed,) = sample_seeds(address.seed, address.epoch, places, Stream.SHARDS)
            order = Permutation(n, seed=seed, epoch=0)(np.arange(n)).tolist()
        self._left = order[self._to_skip :][::-1]
        self._to_skip = 0
        return n > 0

    def _read(self) -> LaneSample | None:
        attempts = 0
        while self._shard < self._end:
            shard = self._address.shards[self._shard % len(self._address.shards)]
            name = f"shard {shard!r}, cursor {self._offset}"
            try:
                sample, self._offset = self._next(shard)
            except StopIteration:
                self._check_number(shard, ended=True)
                self._leave_shard()
            except Stopped:
                raise
            except OSError as error:
                if not isinstance(error, FileNotFoundError) and not self._is_damage(error):
                    self._generator = None
                    attempts += 1
                    if attempts < MAX_READS:
                        continue
                    raise _noted(error, name)  # noqa: B904 - it is the same error
                self._give_up(error, name)
            except Exception as error:
                self._give_up(error, name)
            else:
                self._read_ordinal += 1
                self._check_number(shard, ended=False)
                return LaneSample(name, sample)
        return None

    def _next(self, shard: str) -> tuple[Any, int]:
        if not self._is_encoded:
            address = self._address
            place = address.position(self._read_ordinal)
            seed_global_generators(self._seeds.at(address.seed, address.epoch, place))
        if self._generator is None:
            self._generator = iter(self._dataset.read_shard(shard, self._offset))
        return next(self._generator)

    def _give_up(self, error: Exception, name: str) -> None:
        """Leave out the rest of a shard, with a record or an exception."""
        address = self._address
        position = address.position(self._read_ordinal)
        offset = self._offset
        self._leave_shard()
        is_skipped = isinstance(error, FileNotFoundError) or self._is_damage(error)
        if self._drops_bad and is_skipped:
            bad = FoundBad(f"rest of {name}", position, address.epoch, reason_of(error), False)
            self._found.append(bad)
            return
        if self._is_encoded and self._is_damage(error) and not isinstance(error, BadSample):
            raise BadSample(
                name, index=offset, position=position, epoch=address.epoch, reason=str(error)
            ) from error
        raise _noted(error, name)

    def _is_damage(self, error: Exception) -> bool:
        return isinstance(error, ValueError) if self._is_encoded else is_bad(error)

    def _check_number(self, shard: str, *, ended: bool) -> None:
        """Ranks end where ``num_samples()`` says: nothing may be cut off in silence."""
        if self._num_read is None:
            return
        self._num_read += not ended
        promised = self._dataset.num_samples(shard)
        if (
            promised is None
            or promised == self._num_read
            or not (ended or self._num_read > promised)
        ):
            return
        raise LoaderError(
            f"shard {shard!r} has {'only' if ended else 'at least'} {self._num_read} samples, and "
            f"{type(self._dataset).__name__}.num_samples() says {promised}. Remedy: correct it"
        )

    def _leave_shard(self) -> None:
        self._generator = None
        self._shard += 1
        self._offset = 0
        self._num_read = 0


def _noted(error: Exception, name: str) -> Exception:
    noted: Any = error
    noted.__notes__ = [*getattr(error, "__notes__", ()), f"in {name}"]
    return error
