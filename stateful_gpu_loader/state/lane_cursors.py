"""LaneCursors: where all lanes of a rank stand, at the cost of those that have moved."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

from stateful_gpu_loader.state.forks import fork_safe
from stateful_gpu_loader.state.lane_cursor import LaneCursor, lane_text
from stateful_gpu_loader.state.schema import lane_key


class LaneCursors(Mapping[int, LaneCursor]):
    """The cursors of lanes at one moment of an epoch; it does not change.

    A copy of all lanes behind each batch would cost more than the batch, where there are thousands.
    So the moments of a pass share one dictionary, which is that of the latest. An earlier one knows
    the cursors that had not moved yet, and the moment that followed.

    Args:
        epoch: the epoch.
        cursors: the cursor of each lane.

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
        self._had: dict[int, LaneCursor] = {}
        """What lanes had here whose cursors are others at the following moment."""

    def __reduce__(self) -> tuple[Any, ...]:
        return LaneCursors, (self._latest.epoch, dict(self.items()))

    def __getitem__(self, lane: int) -> LaneCursor:
        with self._latest.lock:
            return self._had_since().get(lane) or self._latest.cursors[lane]

    def __iter__(self) -> Iterator[int]:
        return iter(self._latest.cursors)

    def __len__(self) -> int:
        return len(self._latest.cursors)

    def moved(self, cursors: Mapping[int, LaneCursor]) -> LaneCursors:
        """Return the following moment, in which these lanes have these cursors."""
        latest = self._latest
        following = LaneCursors.__new__(LaneCursors)
        following._latest, following._following, following._had = latest, None, {}
        with latest.lock:
            if self._following is not None:
                raise ValueError("another moment follows. Remedy: move the cursors of the latest")
            self._had = {lane: latest.cursors[lane] for lane in cursors}
            self._following = following
            latest.cursors.update(cursors)
            latest.untold.update(cursors)
        return following

    def texts(self) -> dict[str, str]:
        """Return the entries of a loader's state, one a lane."""
        latest = self._latest
        with latest.lock:
            latest.texts.update(_texts(latest.epoch, latest.untold))
            latest.untold.clear()
            return latest.texts | _texts(latest.epoch, self._had_since())

    def _had_since(self) -> dict[int, LaneCursor]:
        """Return the cursors that are not those of the latest moment."""
        had: dict[int, LaneCursor] = {}
        moment = self
        while moment._following is not None:
            had = moment._had | had
            moment = moment._following
        return had


class _Latest:
    """What the moments of a pass share; the lock is for states that other threads ask for."""

    def __init__(self, epoch: int, cursors: dict[int, LaneCursor]) -> None:
        self.lock = fork_safe(threading.Lock())
        self.epoch = epoch
        self.cursors = cursors
        self.texts: dict[str, str] = {}
        self.untold = dict(cursors)
        """Cursors of which there is no text yet."""


def _texts(epoch: int, cursors: Mapping[int, LaneCursor]) -> dict[str, str]:
    return {lane_key(lane): lane_text(epoch, cursor) for lane, cursor in cursors.items()}
