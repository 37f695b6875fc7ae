"""LaneMoves: lets another worker go on with a lane, where its own was lost."""

from __future__ import annotations

from typing import Any

from stateful_gpu_loader.engine.pipeline import SKIPPED, Answer
from stateful_gpu_loader.records import LaneTurn
from stateful_gpu_loader.state.lane_cursor import LaneProgress


class LaneMoves:
    """Knows, of the lanes of one pass, who reads each of them and where each stands.

    A lane stays with the worker that has it open as long as that lives: its reader may be further
    than the cursor tells, behind an exception or with what is left of the lane. Another worker goes
    on from the cursor after the last answered turn, as a resume would.
    """

    def __init__(self) -> None:
        self._readers: dict[int, int] = {}
        """Worker that has each lane open."""
        self._cursors: dict[int, str] = {}
        self._rests: dict[int, tuple[int, int]] = {}
        """Lap, and number of samples left, of lanes found to have no whole batch left."""

    def reader(self, turn: LaneTurn) -> int:
        """Return the worker that has the lane open, or had it; -1 if none has."""
        return self._readers.get(turn.lane, -1)

    def send(self, turn: LaneTurn, worker: int) -> LaneTurn:
        """Note that a worker is to read a turn; return the turn as it is sent to it."""
        lane = turn.lane
        if turn.cursor is not None:
            self._cursors[lane] = turn.cursor
        elif self._readers.get(lane) != worker:
            turn = turn._replace(cursor=self._cursors[lane])
        self._readers[lane] = worker
        return turn

    def known_answer(self, turn: LaneTurn) -> Answer | None:
        """Return the answer to a turn whose worker was lost, if it is known.

        What is left of a lane was counted already, and bad samples reported; nobody need do so
        again.
        """
        lap, rest = self._rests.get(turn.lane, (-1, 0))
        if lap != turn.lap:
            return None
        return Answer(SKIPPED, snapshot=LaneProgress(rest=rest))

    def answer(self, turn: LaneTurn, answer: Any) -> None:
        """Note where a lane stands after a turn."""
        progress = answer.snapshot if isinstance(answer, Answer) else None
        if progress is None:
            return
        for lane, cursor in progress.cursors.items():
            self._cursors[lane] = cursor.to_text()
        if progress.rest is not None:
            self._rests[turn.lane] = turn.lap, progress.rest
