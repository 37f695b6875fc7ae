"""Positions of lanes in an epoch: one lane as a few numbers, and all lanes of a rank."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stateful_gpu_loader.state.bad_samples import FoundBad
from stateful_gpu_loader.state.forks import fork_safe
from stateful_gpu_loader.state.schema import lane_key

_NUMBER = "(?:0|[1-9][0-9]{0,18})"
_TEXT = re.compile(f"{_NUMBER}(?::{_NUMBER}){{4}}")
_END = 1 << 63

ENDED = 1 << 62
"""Shard number of an ended lane with unknown number of shards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneCursor:
    """Position at which a lane continues.

    >>> LaneCursor.from_text("2:512:0:65536:128")
    LaneCursor(turns=2, count=512, shard=0, offset=65536, taken=128)
    """

    turns: int = 0
    """Number of batches requested from the lane in this lap."""
    count: int = 0
    """Number of samples from the lane in this epoch: the ordinal of the next sample."""
    shard: int = 0
    """Ordinal of the shard within the lane's sequence, over all laps."""
    offset: int = 0
    """The dataset's cursor within the shard, at the start of the present window."""
    taken: int = 0
    """Number of samples already taken from the window."""

    @property
    def window_start(self) -> int:
        """Ordinal of the window's first sample, which is the window's key."""
        return self.count - self.taken

    def to_text(self) -> str:
        """Return the five numbers, separated by colons.

        >>> LaneCursor(turns=2, count=512).to_text()
        '2:512:0:0:0'
        """
        return f"{self.turns}:{self.count}:{self.shard}:{self.offset}:{self.taken}"

    @classmethod
    def from_text(cls, text: str) -> LaneCursor:
        """Read back :meth:`to_text`.

        Raises:
            ValueError: the text is not a cursor.
        """
        numbers = [int(part) for part in text.split(":")] if _TEXT.fullmatch(text) else []
        if not numbers or max(numbers) >= _END or numbers[4] > numbers[1]:
            raise ValueError(f"{text!r} is not a lane's cursor of five numbers with colons between")
        turns, count, shard, offset, taken = numbers
        return cls(turns=turns, count=count, shard=shard, offset=offset, taken=taken)


def lane_text(epoch: int, cursor: LaneCursor) -> str:
    """Return a lane's entry in a loader's state.

    Each entry holds the epoch, so that mixed states of ranks are recognised.

    >>> lane_text(3, LaneCursor(turns=2, count=512))
    '3/2:512:0:0:0'
    """
    return f"{epoch}/{cursor.to_text()}"


def epoch_and_cursor(text: str) -> tuple[int, LaneCursor]:
    """Read back :func:`lane_text`.

    Raises:
        ValueError: the text is not such an entry.

    >>> epoch_and_cursor("3/2:512:0:0:0")[0]
    3
    """
    epoch, _, cursor = text.partition("/")
    if not re.fullmatch(_NUMBER, epoch):
        raise ValueError(f"{text!r} does not begin with an epoch and a slash")
    return int(epoch), LaneCursor.from_text(cursor)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneProgress:
    """Positions of a request's lanes after it, reported with the batch."""

    cursors: dict[int, LaneCursor] = field(default_factory=dict)
    """Cursor of each lane that has moved."""
    rest: int | None = None
    """Number of samples left in a lane, if fewer than requested."""
    bad: tuple[FoundBad, ...] = ()
    """Bad samples found while these were counted; recorded with the last of them."""


class LaneCursors(Mapping[int, LaneCursor]):
    """Cursors of lanes at one moment of an epoch; immutable.

    To avoid copying thousands of cursors after each batch, the moments of a pass share one
    dictionary of the latest cursors. An earlier moment keeps the cursors that had not moved yet,
    and a link to the next moment.

    >>> first = LaneCursors(0, {0: LaneCursor(), 1: LaneCursor()})
    >>> second = first.moved({1: LaneCursor(turns=1, count=8)})
    >>> first[1].count, second[1].count
    (0, 8)
    >>> second.texts()
    {'lane_00000': '0/0:0:0:0:0', 'lane_00001': '0/1:8:0:0:0'}
    """

    def __init__(self, epoch: int, cursors: Mapping[int, LaneCursor]) -> None:
        self._latest = _Latest(epoch, dict(cursors))
        self._following: LaneCursors | None = None
        self._replaced: dict[int, LaneCursor] = {}
        """Cursors at this moment of the lanes that move at the next moment."""

    def __reduce__(self) -> tuple[Any, ...]:
        return LaneCursors, (self._latest.epoch, dict(self.items()))

    def __getitem__(self, lane: int) -> LaneCursor:
        with self._latest.lock:
            return self._replaced_since().get(lane) or self._latest.cursors[lane]

    def __iter__(self) -> Iterator[int]:
        return iter(self._latest.cursors)

    def __len__(self) -> int:
        return len(self._latest.cursors)

    def moved(self, cursors: Mapping[int, LaneCursor]) -> LaneCursors:
        """Return the next moment, in which these lanes have these cursors."""
        latest = self._latest
        following = LaneCursors.__new__(LaneCursors)
        following._latest, following._following, following._replaced = latest, None, {}
        with latest.lock:
            if self._following is not None:
                raise ValueError("another moment follows. Remedy: move the cursors of the latest")
            self._replaced = {lane: latest.cursors[lane] for lane in cursors}
            self._following = following
            latest.cursors.update(cursors)
            latest.unwritten.update(cursors)
        return following

    def texts(self) -> dict[str, str]:
        """Return the entries of a loader's state, one for each lane."""
        latest = self._latest
        with latest.lock:
            latest.texts.update(_texts(latest.epoch, latest.unwritten))
            latest.unwritten = {}
            return latest.texts | _texts(latest.epoch, self._replaced_since())

    def _replaced_since(self) -> dict[int, LaneCursor]:
        """Return the cursors that differ from the latest moment."""
        replaced: dict[int, LaneCursor] = {}
        moment = self
        while moment._following is not None:
            replaced = moment._replaced | replaced
            moment = moment._following
        return replaced


class _Latest:
    """Data that the moments of a pass share.

    Other threads may ask for a state, and so may a signal handler while its own thread holds the
    lock.
    """

    def __init__(self, epoch: int, cursors: dict[int, LaneCursor]) -> None:
        self.lock = fork_safe(threading.RLock())
        self.epoch = epoch
        self.cursors = cursors
        self.texts: dict[str, str] = {}
        self.unwritten = dict(cursors)
        """Cursors that have no text yet."""


def _texts(epoch: int, cursors: Mapping[int, LaneCursor]) -> dict[str, str]:
    return {lane_key(lane): lane_text(epoch, cursor) for lane, cursor in cursors.items()}
