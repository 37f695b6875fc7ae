"""RemotePipeline: executes requests in workers on other machines, any of which may be lost."""

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
from stateful_gpu_loader.engine.pipeline import Failure
from stateful_gpu_loader.engine.stages import stage
from stateful_gpu_loader.engine.stats import PRESENT, Tally
from stateful_gpu_loader.engine.workers.cluster import Answered, Cluster
from stateful_gpu_loader.engine.workers.dispatch import Dispatch
from stateful_gpu_loader.engine.workers.remote_dispatch import RemoteDispatch
from stateful_gpu_loader.engine.workers.remote_failure import with_failure_rebuilt, without_frames
from stateful_gpu_loader.records import WorkerStart

_JOIN_SECONDS = 5.0
_SECONDS_BETWEEN_LOOKS = 1.0


class RemotePipeline:
    """Keeps a bounded number of batches ahead, made by workers of a cluster.

    One thread receives answers and unpacks them. All requests are drawn in the user's own thread.

    Args:
        connect: returns the cluster; called when the first worker is wanted.
        num_workers: number of workers that are asked for.
        limit: largest number of batches in flight.
        depth: largest number of requests that a worker has at a time, as long as others have room.
        threads: number of requests that a worker executes at a time.
        timeout: seconds that a worker may take for the batch that ``next()`` waits for; 0 means no
            limit.
        in_order: deliver in the order of the requests, otherwise in that of the answers.
        persistent: keep the workers from one pass to the next.
        max_losses: number of workers that one request may lose.
        unpack: returns an answer of a worker, in memory of its own.
        tally: where times and lost workers are noted.
    """

    def __init__(
        self,
        connect: Callable[[], Cluster],
        *,
        num_workers: int,
        limit: int,
        depth: int,
        threads: int,
        timeout: float,
        in_order: bool,
        persistent: bool,
        max_losses: int,
        unpack: Callable[[Any], Any],
        tally: Tally,
    ) -> None:
        self._connect = connect
        self._num_workers = num_workers
        self._limit = limit
        self._depth = depth
        self._threads = threads
        self._timeout = timeout
        self._in_order = in_order
        self._persistent = persistent
        self._max_losses = max_losses
        self._unpack = unpack
        self._tally = tally
        self._dispatch: RemoteDispatch | None = None
        self._end: weakref.finalize[..., Any] | None = None
        self.is_whole = False
        self._is_fresh = False
        """Whether the workers were asked for and have not run a pass."""

    def launch(self) -> None:
        self._launched()
        self._is_fresh = True

    def start(
        self,
        requests: Iterator[Any],
        starts: Sequence[WorkerStart] | None = None,
        *,
        one_at_a_time: bool = False,
    ) -> None:
        if not (self._persistent or self._is_fresh):
            self.close()
        self._is_fresh = False
        dispatch = self._dispatch or self._launched()
        limit = 1 if one_at_a_time else self._limit
        window = Dispatch(
            requests, starts, num_workers=self._num_workers, limit=limit, in_order=self._in_order
        )
        dispatch.begin(window, has_states=starts is not None)
        dispatch.fill()

    def __next__(self) -> tuple[Any, Any]:
        dispatch = self._dispatch
        if dispatch is None:
            raise StopIteration
        began = time.monotonic()
        dispatch.fill()
        while not self._wait(dispatch):
            dispatch.look_for_overdue(began, self._timeout)
            _tell(dispatch)
        _tell(dispatch)
        # Sent before the answer is taken, so that an exception of the requests does not lose it.
        dispatch.fill(spare=1)
        try:
            request, answer = dispatch.deliver()
        except StopIteration:
            if not self._persistent:
                self.close()
            raise
        return request, with_failure_rebuilt(answer)

    def _wait(self, dispatch: RemoteDispatch) -> bool:
        self.is_whole = True
        has_come = dispatch.wait(min(_SECONDS_BETWEEN_LOOKS, self._timeout / 4 or math.inf))
        self.is_whole = False
        return has_come

    def is_ready(self) -> bool:
        if self._dispatch is None:
            return False
        self._dispatch.fill()
        return self._dispatch.is_ready()

    def depth(self) -> tuple[int, int]:
        return (0, 0) if self._dispatch is None else self._dispatch.depth()

    def close(self) -> None:
        self._dispatch = None
        if self._end is not None:
            self._end()

    def _launched(self) -> RemoteDispatch:
        cluster = self._connect()
        dispatch = RemoteDispatch(
            cluster,
            num_workers=self._num_workers,
            depth=self._depth,
            threads=self._threads,
            max_losses=self._max_losses,
            tally=self._tally,
        )
        thread = threading.Thread(
            target=_receive,
            args=(dispatch, self._unpack, self._tally),
            name="stateful_gpu_loader receiver",
            daemon=True,
        )
        self._dispatch = dispatch
        self._end = weakref.finalize(self, _end, dispatch, thread, os.getpid())
        thread.start()
        return dispatch


def _tell(dispatch: RemoteDispatch) -> None:
    for notice in dispatch.notices():
        warnings.warn(notice, RuntimeWarning, stacklevel=4)


def _receive(dispatch: RemoteDispatch, unpack: Callable[[Any], Any], tally: Tally) -> None:
    limit_this_thread()
    with tally.working():
        while not dispatch.stopped:
            try:
                event = dispatch.receive(_SECONDS_BETWEEN_LOOKS)
                if isinstance(event, Answered):
                    if dispatch.is_wanted(event.number):
                        dispatch.take(event.number, _unpacked(event.packed, unpack))
                elif event is not None:
                    dispatch.note(event)
                del event  # keep no batch alive while waiting
            except Exception as error:
                if not dispatch.stopped:
                    dispatch.give_up(error)
                return


def _unpacked(packed: Any, unpack: Callable[[Any], Any]) -> Any:
    PRESENT.work.add(packed.seconds)
    try:
        with stage("transfer"):
            return unpack(packed)
    except Exception as error:
        return Failure(without_frames(error))


def _end(dispatch: RemoteDispatch, thread: threading.Thread, pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child has the objects, but neither the thread nor the workers
    dispatch.close()
    if threading.current_thread() is not thread:
        thread.join(_JOIN_SECONDS)
