"""LaneMoves: lets another worker go on with a lane, where its own was lost."""

from __future__ import annotations

from typing import Any

from stateful_gpu_loader.engine.pipeline import SKIPPED, Answer
from stateful_gpu_loader.records import LaneTurn
from stateful_gpu_loader.state.lane_cursor import LaneProgress


class LaneMoves:
    """Knows, of the lanes of one pass, who reads each of them and where each stands.

    Turns of one lane are read one after the other by the worker that has it open. Another worker
    can go on with it once no turn is under way, from the cursor after the last answered one.
    """

    def __init__(self) -> None:
        self._readers: dict[int, int] = {}
        """Worker that has each lane open."""
        self._under_way: dict[int, int] = {}
        """Number of turns of each lane that are under way at its reader."""
        self._cursors: dict[int, str] = {}
        self._rests: dict[int, tuple[int, int]] = {}
        """Lap, and number of samples left, of lanes found to have no whole batch left."""

    def reader(self, turn: LaneTurn) -> int | None:
        """Return the worker that must read this turn; None if any worker may."""
        return self._readers[turn.lane] if self._under_way.get(turn.lane) else None

    def send(self, turn: LaneTurn, worker: int) -> LaneTurn:
        """Note that a worker is to read a turn; return the turn as it is sent to it."""
        lane = turn.lane
        if turn.cursor is not None:
            self._cursors[lane] = turn.cursor
        elif self._readers.get(lane) != worker:
            turn = turn._replace(cursor=self._cursors[lane])
        self._readers[lane] = worker
        self._under_way[lane] = self._under_way.get(lane, 0) + 1
        return turn

    def take_back(self, turn: LaneTurn) -> Answer | None:
        """Note that a turn was lost with its worker; return its answer if that is known.

        What is left of a lane was counted already, and bad samples reported; nobody need do so
        again.
        """
        self._under_way[turn.lane] -= 1
        self._readers.pop(turn.lane, None)
        lap, rest = self._rests.get(turn.lane, (-1, 0))
        if lap != turn.lap:
            return None
        return Answer(SKIPPED, snapshot=LaneProgress(rest=rest))

    def answer(self, turn: LaneTurn, answer: Any) -> None:
        """Note where a lane stands after a turn."""
        self._under_way[turn.lane] -= 1
        progress = answer.snapshot if isinstance(answer, Answer) else None
        if progress is None:
            return
        for lane, cursor in progress.cursors.items():
            self._cursors[lane] = cursor.to_text()
        if progress.rest is not None:
            self._rests[turn.lane] = turn.lap, progress.rest
