"""RemoteDispatch: who makes which batch on a cluster, and who in place of those that are lost.

A worker that is lost takes nobody with it: what it was to do is done by others, and another worker
is asked for in its place. Requests go to whoever has started, so a loader begins with the first
worker, and uses more of them as the cluster finds room. Where the workers keep states of the user's
objects, each request has its worker, and a loss costs all batches in flight, as with processes.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

from stateful_gpu_loader.engine.pipeline import WorkersDied
from stateful_gpu_loader.engine.stats import Tally
from stateful_gpu_loader.engine.workers.cluster import (
    Cluster,
    Event,
    Lost,
    Severed,
    Started,
    Unreadable,
)
from stateful_gpu_loader.engine.workers.dispatch import Dispatch
from stateful_gpu_loader.engine.workers.lane_moves import LaneMoves
from stateful_gpu_loader.engine.workers.remote_failure import without_frames
from stateful_gpu_loader.engine.workers.worker_main import WorkerMessage, in_place_of
from stateful_gpu_loader.records import LaneTurn

_SECONDS_TO_START = 120.0
"""Seconds without any worker after which the user is told, and a ``timeout`` ends the wait.

Longer than Ray takes, a minute, to give up a node that hangs, on which it may place workers until
then.
"""


class _Worker:
    """A worker that was asked for."""

    def __init__(self, number: int, place: int) -> None:
        self.number = number
        self.place = place
        self.has_started = False
        self.requests: dict[int, float] = {}
        """Numbers of the requests that it has, oldest first, and when they were sent."""


class RemoteDispatch:
    """The workers of one pipeline and what they have to do; has no reference to the pipeline.

    Args:
        cluster: starts workers and carries messages.
        num_workers: number of workers that are asked for.
        depth: largest number of requests that a worker has at a time.
        threads: number of requests that a worker executes at a time.
        max_losses: number of workers that one request may lose.
        tally: where lost workers are counted.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        num_workers: int,
        depth: int,
        threads: int,
        max_losses: int,
        tally: Tally,
    ) -> None:
        self._cluster = cluster
        self._depth = depth
        self._threads = threads
        self._max_losses = max_losses
        self._tally = tally
        # Re-entrant: the garbage collector may drop an iterator, and end its workers, within it.
        self._lock = threading.RLock()
        self._answered = threading.Condition(self._lock)
        self._numbers = itertools.count()
        self._names = itertools.count()
        self._first = 0
        """Number of the first request of the pass."""
        self._window = Dispatch(iter(()), None, num_workers=num_workers, limit=1, in_order=True)
        self._has_states = False
        self._lanes = LaneMoves()
        self._messages: dict[int, tuple[int, WorkerMessage]] = {}
        """All unanswered requests by number: their places, and what is sent."""
        self._unsent: list[int] = []
        """Numbers of those that no worker has, in order."""
        self._losses: dict[int, int] = {}
        """How many workers each unanswered request has lost, if any."""
        self._failed_starts = 0
        """Number of workers in a row that were lost before they had started."""
        self._fatal: WorkersDied | None = None
        self._notices: list[str] = []
        self._unheld_since: float | None = None
        """When it was first seen that no worker has the oldest request; None while one has it."""
        self._has_told_of_waiting = False
        self.stopped = False
        self._workers: dict[int, _Worker] = {}
        self._at: dict[int, _Worker] = {}
        """The workers by their places."""
        for place in range(num_workers):
            self._ask_for(place)

    # In the user's own thread

    def begin(self, window: Dispatch, *, has_states: bool) -> None:
        """Abandon all requests and take those of another pass."""
        with self._lock:
            self._window = window
            self._has_states = has_states
            self._lanes = LaneMoves()
            self._first = next(self._numbers)
            self._messages, self._unsent, self._losses = {}, [], {}
            for worker in self._workers.values():
                worker.requests.clear()

    def fill(self, *, spare: int = 0) -> None:
        """Issue requests until enough batches are in flight.

        Args:
            spare: number of places that are about to be free.
        """
        # Drawn without the lock, as a user's sampler may take its time.
        while self._fatal is None and (drawn := self._window.draw(spare=spare)) is not None:
            with self._lock:
                number = next(self._numbers)
                place, request, start = self._window.place(number, drawn)
                self._messages[number] = place, WorkerMessage(request, start)
                self._unsent.append(number)
                self._send()

    def wait(self, seconds: float) -> bool:
        """Wait so long for the next batch; return whether it, or the end, has come."""
        with self._lock:
            return self._answered.wait_for(self._is_ready, seconds)

    def deliver(self) -> tuple[Any, Any]:
        """Return the next request and its answer.

        Raises:
            WorkersDied: no answer will come.
            StopIteration: the requests are exhausted.
        """
        with self._lock:
            if self._window.is_ready():
                return self._window.deliver()
            if self._fatal is not None:
                raise self._fatal
            self._window.end()
            raise StopIteration

    def is_ready(self) -> bool:
        with self._lock:
            return self._is_ready()

    def depth(self) -> tuple[int, int]:
        with self._lock:
            return self._window.depth()

    def look_for_overdue(self, began: float, timeout: float) -> None:
        """Give up a worker that exceeds the timeout, and the wait for one that never starts.

        Args:
            began: when ``next()`` began to wait.
        """
        now = time.monotonic()
        with self._lock:
            if self._is_ready() or not self._messages:
                return
            oldest = min(self._messages)
            holder = next((w for w in self._workers.values() if oldest in w.requests), None)
            if holder is not None:
                self._unheld_since = None
                since = max(began, holder.requests[oldest])
                if timeout and now - since > timeout:
                    self._lose(holder, f"no batch came from it within {timeout=} seconds")
                return
            if self._unheld_since is None:
                self._unheld_since = now
            waited = now - max(began, self._unheld_since)
            if waited < _SECONDS_TO_START or self._has_told_of_waiting:
                return
            self._has_told_of_waiting = True
            text = (
                f"a batch has waited {_SECONDS_TO_START:.0f} seconds for a worker to start: "
                f"{self._cluster.resources()}"
            )
            if timeout:
                remedy = "ask for less with the options of worker_type, or add nodes"
                self._die(WorkersDied(text, self._window.oldest, remedy=remedy))
            else:
                self._notices.append(text)

    def notices(self) -> list[str]:
        """Return what the user should be told, once."""
        with self._lock:
            notices, self._notices = self._notices, []
            return notices

    def close(self) -> None:
        """Abandon everything and end the workers."""
        with self._lock:
            self.stopped = True
            self._window.clear()
            self._messages.clear()
            self._unsent.clear()
            self._answered.notify_all()
            self._cluster.close()

    # In the receiving thread

    def receive(self, seconds: float) -> Event | None:
        """Return what has happened next in the cluster."""
        return self._cluster.receive(seconds)

    def is_wanted(self, number: int) -> bool:
        """Whether the answer to a request is still waited for."""
        with self._lock:
            return number in self._messages

    def take(self, number: int, answer: Any) -> None:
        """Take the answer to a request."""
        with self._lock:
            if number not in self._messages:
                return
            request = self._forget(number).request
            if isinstance(request, LaneTurn):
                self._lanes.answer(request, answer)
            self._window.answer(number, answer)
            self._send()
            if self._is_ready():
                self._answered.notify_all()

    def note(self, event: Event) -> None:
        """Note what happened other than an answer."""
        with self._lock:
            if self.stopped:
                return
            if isinstance(event, Started) and event.worker in self._workers:
                self._workers[event.worker].has_started = True
                self._failed_starts = 0
                self._send()
            elif isinstance(event, Lost) and event.worker in self._workers:
                self._lose(self._workers[event.worker], event.why)
            elif isinstance(event, Unreadable) and event.number in self._messages:
                self._lose_answer(event.number, event.why)
            elif isinstance(event, Severed):
                oldest = self._window.oldest
                self._die(WorkersDied(event.why, oldest, remedy=event.remedy))

    def give_up(self, error: Exception) -> None:
        """Report that nothing can be received any more."""
        with self._lock:
            died = WorkersDied(f"batches cannot be received: {error!r}", self._window.oldest)
            died.__cause__ = without_frames(error)
            self._die(died)

    # With the lock

    def _is_ready(self) -> bool:
        return self._window.is_ready() or self._window.is_over or self._fatal is not None

    def _die(self, died: WorkersDied) -> None:
        self._fatal = self._fatal or died
        self._answered.notify_all()

    def _ask_for(self, place: int) -> None:
        worker = _Worker(next(self._names), place)
        self._workers[worker.number] = self._at[place] = worker
        self._cluster.start(worker.number, place)

    def _send(self) -> None:
        """Send requests, oldest first, to workers that have started and have room."""
        for number in list(self._unsent):
            _, message = self._messages[number]
            turn = message.request
            if isinstance(turn, LaneTurn) and self._lanes.reader(turn) not in self._workers:
                known = self._lanes.known_answer(turn)
                if known is not None:
                    self._unsent.remove(number)
                    self._forget(number)
                    self._window.answer(number, known)
                    self._answered.notify_all()
                    continue
            worker = self._worker_for(number)
            if worker is None:
                continue
            self._unsent.remove(number)
            if isinstance(turn, LaneTurn):
                message = message._replace(request=self._lanes.send(turn, worker.number))
            worker.requests[number] = time.monotonic()
            try:
                self._cluster.send(worker.number, number, message, first=self._first)
            except Exception as error:  # it cannot be pickled
                instead = in_place_of(message, error)
                self._cluster.send(worker.number, number, instead, first=self._first)

    def _worker_for(self, number: int) -> _Worker | None:
        place, message = self._messages[number]
        own = self._at[place]
        if self._has_states:
            return own if own.has_started else None
        if isinstance(message.request, LaneTurn):
            reader = self._workers.get(self._lanes.reader(message.request))
            if reader is not None:
                return reader
            if own.has_started:
                return own
        started = [worker for worker in self._workers.values() if worker.has_started]
        freest = min(started, key=lambda each: (len(each.requests), each is not own), default=None)
        if freest is None or isinstance(message.request, LaneTurn):
            return freest
        return freest if len(freest.requests) < self._depth else None

    def _forget(self, number: int) -> WorkerMessage:
        for worker in self._workers.values():
            worker.requests.pop(number, None)
        self._losses.pop(number, None)
        return self._messages.pop(number)[1]

    def _lose(self, worker: _Worker, why: str) -> None:
        """Ask for another worker, and have the requests of the lost one done by others."""
        del self._workers[worker.number]
        self._cluster.kill(worker.number)
        lost, worker.requests = list(worker.requests), {}
        what = f"worker {worker.place} was lost: {why}"
        if self._has_states:
            self._die(WorkersDied(what, self._window.oldest))
            return
        self._failed_starts += not worker.has_started
        if self._failed_starts <= self._max_losses:
            self._tally.worker_restarts += 1
            self._ask_for(worker.place)
            others = "Another one is started in its place"
        elif self._workers:
            others = f"{self._failed_starts} in a row did not start, so none is asked for any more"
        else:
            remedy = "look for what keeps workers from starting"
            self._die(WorkersDied(what, self._window.oldest, remedy=remedy))
            return
        self._notices.append(
            f"{what}. {others}; the {len(lost)} batches that it had are made by those that there "
            "are, and the stream goes on"
        )
        # It was working on as many as it has threads, so only these may have ended it.
        for number in lost[: self._threads]:
            self._count_loss(number, what)
        self._unsent = sorted([*lost, *self._unsent])
        self._send()

    def _lose_answer(self, number: int, why: str) -> None:
        """Have a request done again whose answer cannot be read."""
        request = self._messages[number][1].request
        if isinstance(request, LaneTurn) or self._has_states:
            # Its worker has moved on, so the next answers would not follow on it.
            self._die(WorkersDied(f"an answer was lost: {why}", self._window.oldest))
            return
        for worker in self._workers.values():
            worker.requests.pop(number, None)
        self._count_loss(number, f"an answer was lost: {why}")
        self._unsent = sorted([number, *self._unsent])
        self._send()

    def _count_loss(self, number: int, what: str) -> None:
        self._losses[number] = self._losses.get(number, 0) + 1
        if self._losses[number] > self._max_losses:
            remedy = (
                f"look for what ends the workers at this batch: {self._losses[number]} were lost "
                f"while they made it, and max_worker_restarts is {self._max_losses}"
            )
            request = self._messages[number][1].request
            self._die(WorkersDied(what, request, remedy=remedy))
