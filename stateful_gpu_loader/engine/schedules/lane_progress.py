"""LaneProgress: what a worker says of lanes, with the batch that it made of them."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass, field

from stateful_gpu_loader.state.bad_samples import FoundBad
from stateful_gpu_loader.state.lane_cursor import LaneCursor


@dataclass(frozen=True, kw_only=True)
class LaneProgress:
    """Where the lanes of one request stand behind it.

    >>> news = LaneProgress(cursors={3: LaneCursor(turns=1, count=8)}, rest=None)
    >>> LaneProgress.from_bytes(news.to_bytes()) == news
    True
    """

    cursors: dict[int, LaneCursor] = field(default_factory=dict)
    """Of each lane that has moved."""
    rest: int | None = None
    """Samples that a lane has left, when these are fewer than it was asked for."""

    bad: tuple[FoundBad, ...] = ()
    """What was met on the way to that rest: it is told with its last sample."""

    def to_bytes(self) -> bytes:
        """As a worker's state travels."""
        cursors = {lane: cursor.to_text() for lane, cursor in self.cursors.items()}
        return json.dumps([cursors, self.rest, [*map(astuple, self.bad)]]).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> LaneProgress:
        """Read back :meth:`to_bytes`."""
        cursors, rest, bad = json.loads(content)
        return cls(
            cursors={int(lane): LaneCursor.from_text(text) for lane, text in cursors.items()},
            rest=rest,
            bad=tuple(FoundBad(*row) for row in bad),
        )
