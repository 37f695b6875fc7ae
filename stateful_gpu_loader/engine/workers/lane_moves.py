"""LaneMoves: lets another worker continue a lane whose worker was lost."""

from __future__ import annotations

from typing import Any

from stateful_gpu_loader.engine.pipeline import SKIPPED, Answer
from stateful_gpu_loader.records import LaneTurn
from stateful_gpu_loader.state.lane_cursor import LaneProgress


class LaneMoves:
    """The reader and the cursor of each lane of one pass.

    A lane stays with the worker that has it open, as long as that worker lives, because its reader
    may be ahead of the cursor. Another worker continues from the cursor after the last answered
    turn.
    """

    def __init__(self) -> None:
        self._readers: dict[int, int] = {}
        """Worker that has each lane open."""
        self._cursors: dict[int, str] = {}
        self._rests: dict[int, tuple[int, int]] = {}
        """Lap and number of samples left, of lanes without a whole batch."""

    def reader(self, turn: LaneTurn) -> int:
        """Return the worker that has the lane open, or had it; -1 if none."""
        return self._readers.get(turn.lane, -1)

    def send(self, turn: LaneTurn, worker: int) -> LaneTurn:
        """Note the worker that reads a turn; return the turn as it is sent."""
        lane = turn.lane
        if turn.cursor is not None:
            self._cursors[lane] = turn.cursor
        elif self._readers.get(lane) != worker:
            turn = turn._replace(cursor=self._cursors[lane])
        self._readers[lane] = worker
        return turn

    def known_answer(self, turn: LaneTurn) -> Answer | None:
        """Return the answer to a turn whose worker was lost, if it is known.

        A counted rest and reported bad samples are not repeated.
        """
        lap, rest = self._rests.get(turn.lane, (-1, 0))
        if lap != turn.lap:
            return None
        return Answer(SKIPPED, snapshot=LaneProgress(rest=rest))

    def answer(self, turn: LaneTurn, answer: Any) -> None:
        progress = answer.snapshot if isinstance(answer, Answer) else None
        if progress is None:
            return
        for lane, cursor in progress.cursors.items():
            self._cursors[lane] = cursor.to_text()
        if progress.rest is not None:
            self._rests[turn.lane] = turn.lap, progress.rest
