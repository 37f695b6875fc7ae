"""Where lanes of an epoch stand, as a few numbers: in a state, and as workers tell of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from stateful_gpu_loader.state.bad_samples import FoundBad

_NUMBER = "(?:0|[1-9][0-9]{0,18})"
_TEXT = re.compile(f"{_NUMBER}(?::{_NUMBER}){{4}}")
_END = 1 << 63

ENDED = 1 << 62
"""Stands for the shard of a lane that has ended, where its number of shards is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneCursor:
    """Where a lane goes on; a resume reads at most one window again.

    >>> LaneCursor.from_text("2:512:0:65536:128")
    LaneCursor(turns=2, count=512, shard=0, offset=65536, taken=128)
    """

    turns: int = 0
    """Batches that the lane was asked for in this lap; lanes take turns by this number."""
    count: int = 0
    """Samples that came from the lane in this epoch: the ordinal of the next one."""
    shard: int = 0
    """Ordinal of the shard within the lane's sequence, over all laps."""
    offset: int = 0
    """The dataset's cursor within that shard, from which the present window is read."""
    taken: int = 0
    """Samples of the window that came already."""

    @property
    def window_start(self) -> int:
        """The ordinal of the window's first sample: the window's key."""
        return self.count - self.taken

    def to_text(self) -> str:
        """Five numbers, with colons between them.

        >>> LaneCursor(turns=2, count=512).to_text()
        '2:512:0:0:0'
        """
        return f"{self.turns}:{self.count}:{self.shard}:{self.offset}:{self.taken}"

    @classmethod
    def from_text(cls, text: str) -> LaneCursor:
        """Read back :meth:`to_text`.

        Raises:
            ValueError: it is no such text.
        """
        numbers = [int(part) for part in text.split(":")] if _TEXT.fullmatch(text) else []
        if not numbers or max(numbers) >= _END or numbers[4] > numbers[1]:
            raise ValueError(f"{text!r} is no lane's cursor: five numbers with colons between them")
        turns, count, shard, offset, taken = numbers
        return cls(turns=turns, count=count, shard=shard, offset=offset, taken=taken)


def lane_text(epoch: int, cursor: LaneCursor) -> str:
    """A lane in a loader's state. The epoch is in each: ranks end an epoch one after the other, and
    a checkpoint that mixes their states must not pass for one.

    >>> lane_text(3, LaneCursor(turns=2, count=512))
    '3/2:512:0:0:0'
    """
    return f"{epoch}/{cursor.to_text()}"


def epoch_and_cursor(text: str) -> tuple[int, LaneCursor]:
    """Read back :func:`lane_text`.

    Raises:
        ValueError: it is no such text.

    >>> epoch_and_cursor("3/2:512:0:0:0")[0]
    3
    """
    epoch, _, cursor = text.partition("/")
    if not re.fullmatch(_NUMBER, epoch):
        raise ValueError(f"{text!r} does not begin with an epoch and a slash")
    return int(epoch), LaneCursor.from_text(cursor)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneProgress:
    """Positions of a request's lanes after it, as a worker reports them together with a batch."""

    cursors: dict[int, LaneCursor] = field(default_factory=dict)
    """Cursor of each lane that has moved."""
    rest: int | None = None
    """Number of samples left in a lane, if these are fewer than the request asked for."""
    bad: tuple[FoundBad, ...] = ()
    """Bad samples met while those samples were counted; recorded with the last of them."""
