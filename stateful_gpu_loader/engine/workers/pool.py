"""PoolPipeline: executes requests in a cluster's workers, which may be lost at any time."""

from __future__ import annotations

import math
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stateful_gpu_loader.engine.isolation import limit_this_thread
from stateful_gpu_loader.engine.pipeline import (
    Answer,
    Failure,
    RemoteFailure,
    with_failure_rebuilt,
    without_frames,
)
from stateful_gpu_loader.engine.stats import PRESENT, Tally, stage
from stateful_gpu_loader.engine.workers.cluster import Answered, Event
from stateful_gpu_loader.engine.workers.dispatch import Dispatch
from stateful_gpu_loader.records import WorkerStart

_JOIN_SECONDS = 5.0
_SECONDS_BETWEEN_LOOKS = 1.0


class PoolPipeline:
    """Keeps a bounded number of batches ahead, made by workers of a cluster.

    All requests are drawn, and without ``unpack`` all answers received, in the user's thread.

    Args:
        dispatch: returns the dispatch; called when the first worker is needed.
        timeout: seconds that a worker may take for the batch that ``next()`` waits for; 0 means no
            limit.
        persistent: keep the workers from one pass to the next.
        unpack: returns a worker's answer in new memory; called in a thread. None if answers need no
            unpacking.
        tally: receives the seconds of the receiving thread.
    """

    def __init__(
        self,
        dispatch: Callable[[], Dispatch],
        *,
        timeout: float,
        persistent: bool,
        unpack: Callable[[Any], Any] | None = None,
        tally: Tally,
    ) -> None:
        self._make_dispatch = dispatch
        self._timeout = timeout
        self._persistent = persistent
        self._unpack = unpack
        self._tally = tally
        self._dispatch: Dispatch | None = None
        self._end: weakref.finalize[..., Any] | None = None
        self._former_workers: list[Any] = []
        self.is_whole = False
        self._is_fresh = False
        """Whether the workers were started ahead and have not run a pass."""

    @property
    def is_collected(self) -> bool:
        return self._dispatch is not None and self._dispatch.stopped

    @property
    def workers(self) -> list[Any]:
        """Worker processes of this machine, even after their end."""
        return self._former_workers if self._dispatch is None else self._dispatch.processes

    def launch(self) -> None:
        self._launched()
        self._is_fresh = True

    def start(
        self,
        requests: Iterator[Any],
        starts: Sequence[WorkerStart] | None = None,
    ) -> None:
        self.is_whole = False
        if not (self._persistent or self._is_fresh):
            self.close()
        self._is_fresh = False
        dispatch = self._dispatch or self._launched()
        dispatch.begin(requests, starts)
        dispatch.fill()

    def __next__(self) -> tuple[Any, Any]:
        dispatch = self._dispatch
        if dispatch is None:
            raise StopIteration
        self.is_whole = False
        began = time.monotonic()
        dispatch.fill()
        while not self._has_arrived(dispatch):
            self._wait(dispatch)
            # An answer that has come meanwhile is not overdue.
            if not self._has_arrived(dispatch):
                dispatch.look_for_overdue(began, self._timeout)
                _warn(dispatch)
        if dispatch.notices:
            _warn(dispatch)
        # Sent first, so that an exception of the requests does not lose the answer.
        dispatch.fill(spare=1)
        try:
            request, answer = dispatch.deliver()
        except StopIteration:
            self.is_whole = True
            if not self._persistent:
                self.close()
            raise
        if isinstance(answer, (Answer, RemoteFailure)):
            answer = with_failure_rebuilt(answer)
        return request, answer

    def _wait(self, dispatch: Dispatch) -> None:
        """Wait for an event, up to a limit; an exception here loses nothing."""
        seconds = min(_SECONDS_BETWEEN_LOOKS, self._timeout / 4 or math.inf)
        self.is_whole = True
        if self._unpack is None:
            dispatch.await_event(seconds)
        else:
            dispatch.wait(seconds)
        self.is_whole = False

    def is_ready(self) -> bool:
        dispatch = self._dispatch
        if dispatch is None:
            return False
        dispatch.fill()
        return self._has_arrived(dispatch)

    def _has_arrived(self, dispatch: Dispatch) -> bool:
        """Receive what has come; return whether the next batch, or the end, is among it."""
        while not dispatch.is_ready():
            event = dispatch.receive() if self._unpack is None else None
            if event is None:
                return False
            _note(dispatch, event, None)
        return True

    def depth(self) -> tuple[int, int]:
        return (0, 0) if self._dispatch is None else self._dispatch.depth()

    def close(self) -> None:
        self._former_workers, self._dispatch = self.workers, None
        if self._end is not None:
            self._end()

    def _launched(self) -> Dispatch:
        dispatch = self._make_dispatch()
        thread = None
        if self._unpack is not None:
            thread = threading.Thread(
                target=_receive,
                args=(dispatch, self._unpack, self._tally),
                name="stateful_gpu_loader receiver",
                daemon=True,
            )
        self._dispatch = dispatch
        self._end = weakref.finalize(self, _end, dispatch, thread, os.getpid())
        if thread is not None:
            thread.start()
        return dispatch


def _warn(dispatch: Dispatch) -> None:
    while dispatch.notices:
        warnings.warn(dispatch.notices.pop(0), RuntimeWarning, stacklevel=4)


def _receive(dispatch: Dispatch, unpack: Callable[[Any], Any], tally: Tally) -> None:
    limit_this_thread()
    with tally.working():
        while not dispatch.stopped:
            try:
                dispatch.await_event(_SECONDS_BETWEEN_LOOKS)
                event = dispatch.receive()
                if event is not None:
                    _note(dispatch, event, unpack)
                del event  # keep no batch alive while waiting
            except Exception as error:
                if not dispatch.stopped:
                    dispatch.give_up(error)
                return


def _note(dispatch: Dispatch, event: Event, unpack: Callable[[Any], Any] | None) -> None:
    if not isinstance(event, Answered):
        dispatch.note(event)
    elif unpack is None:
        dispatch.take(event.number, event.answer)
    elif dispatch.is_wanted(event.number):
        dispatch.take(event.number, _unpacked(event.answer, unpack))


def _unpacked(packed: Any, unpack: Callable[[Any], Any]) -> Any:
    PRESENT.work.add(packed.seconds)
    try:
        with stage("transfer"):
            return unpack(packed)
    except Exception as error:
        return Failure(without_frames(error))


def _end(dispatch: Dispatch, thread: threading.Thread | None, pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child has the objects, but neither the thread nor the workers
    dispatch.close()
    if thread not in (None, threading.current_thread()):
        thread.join(_JOIN_SECONDS)
