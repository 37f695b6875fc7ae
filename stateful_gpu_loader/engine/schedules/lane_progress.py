"""LaneProgress: what a worker reports about lanes together with a batch."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass, field

from stateful_gpu_loader.state.bad_samples import FoundBad
from stateful_gpu_loader.state.lane_cursor import LaneCursor


@dataclass(frozen=True, kw_only=True)
class LaneProgress:
    """Positions of a request's lanes after it.

    >>> news = LaneProgress(cursors={3: LaneCursor(turns=1, count=8)}, rest=None)
    >>> LaneProgress.from_bytes(news.to_bytes()) == news
    True
    """

    cursors: dict[int, LaneCursor] = field(default_factory=dict)
    """Cursor of each lane that has moved."""
    rest: int | None = None
    """Number of samples left in a lane, if these are fewer than the request asked for."""

    bad: tuple[FoundBad, ...] = ()
    """Bad samples met while those samples were counted; recorded with the last of them."""

    def to_bytes(self) -> bytes:
        """Serialize, for the way from a worker."""
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
