"""Dispatch: who makes which batch on a cluster, and who in place of those that are lost.

A lost worker takes nobody with it: others do its work, and another worker is asked for in its
place. Requests go to whoever has started, so a loader begins with the first worker, and uses more
of them as the cluster finds room. Where the workers keep states of the user's objects, each request
has its worker, and a loss costs all batches in flight.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

from stateful_gpu_loader.engine.pipeline import Answer, Failure, WorkersDied, described
from stateful_gpu_loader.engine.stats import Tally
from stateful_gpu_loader.engine.workers.cluster import (
    Cluster,
    Event,
    Lost,
    Severed,
    Started,
    Unreadable,
)
from stateful_gpu_loader.engine.workers.lane_moves import LaneMoves
from stateful_gpu_loader.engine.workers.remote_failure import without_frames
from stateful_gpu_loader.engine.workers.window import Window
from stateful_gpu_loader.engine.workers.worker_main import WorkerMessage
from stateful_gpu_loader.records import LaneTurn, WorkerStart

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
        self.has_started = self.takes_requests = False
        self.requests: dict[int, float] = {}
        """Numbers of the requests that it has, oldest first, and when they were sent."""


class Dispatch:
    """The workers of one pipeline and what they have to do; has no reference to the pipeline.

    Args:
        connect: returns the cluster, which starts workers and carries messages.
        num_workers: number of workers that are asked for.
        limit: largest number of batches in flight.
        depth: largest number of requests that a worker has at a time, as long as others have room.
        threads: number of requests that a worker executes at a time.
        in_order: deliver in the order of the requests, otherwise in that of the answers.
        takes_turns: have the workers that live take turns, whoever is free.
        max_losses: number of workers that one request may lose.
        tally: where lost workers are counted.
    """

    def __init__(
        self,
        connect: Callable[[], Cluster],
        *,
        num_workers: int,
        limit: int,
        depth: int,
        threads: int = 1,
        in_order: bool,
        takes_turns: bool = False,
        max_losses: int,
        tally: Tally,
    ) -> None:
        self._places = range(num_workers)
        self._limit = limit
        self._in_order = in_order
        self._takes_turns = takes_turns
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
        self._window = Window(iter(()), limit=limit, in_order=in_order)
        self._is_open: Callable[[int], bool] = _always
        self._starts: list[WorkerStart | None] = []
        """What the worker of each place begins with, until it is sent."""
        self._has_states = False
        self._turns = itertools.cycle(self._places)
        self._lanes = LaneMoves()
        self._messages: dict[int, tuple[int, WorkerMessage]] = {}
        """All unanswered requests by number: their places, and what is sent."""
        self._unsent: list[int] = []
        """Numbers of those that no worker has, in order."""
        self._early: dict[int, Any] = {}
        """Answers to turns of lanes before which another turn of the lane is unanswered.

        They are lost with their worker, as a lane goes on elsewhere from one place.
        """
        self._losses: dict[int, int] = {}
        """How many workers each unanswered request has lost, if any."""
        self._failed_starts = 0
        """Number of workers in a row that were lost before they had started."""
        self._fatal: WorkersDied | None = None
        self._fatal_at = 0
        """Number of the request that was lost with them, or 0."""
        self._waits_for: frozenset[int] = frozenset()
        """Requests whose answers are delivered before the loss of the workers is told."""
        self._notices: list[str] = []
        self._unheld_since: float | None = None
        """When it was first seen that no worker has the oldest request; None while one has it."""
        self._has_told_of_waiting = False
        self.stopped = False
        self._workers: dict[int, _Worker] = {}
        self._at: dict[int, _Worker] = {}
        """The workers by their places."""
        self._cluster = cluster = connect()
        try:
            for place in self._places:
                self._ask_for(place)
        except BaseException:
            cluster.close()
            raise

    @property
    def processes(self) -> list[BaseProcess]:
        """The worker processes of this machine; empty if the workers are none."""
        return self._cluster.processes

    # In the user's own thread

    def begin(self, requests: Iterator[Any], starts: Sequence[WorkerStart] | None) -> None:
        """Abandon all requests and take those of another pass.

        Args:
            requests: as in :class:`Window`. They may have ``is_open(place)``, which tells whether a
                worker can take requests that are not bound to a worker.
            starts: what each worker begins with, or None.
        """
        with self._lock:
            self._window = Window(requests, limit=self._limit, in_order=self._in_order)
            self._is_open = getattr(requests, "is_open", _always)
            self._starts = [None for _ in self._places] if starts is None else [*starts]
            self._has_states = starts is not None
            self._turns = itertools.cycle(self._places)
            self._lanes = LaneMoves()
            self._first = next(self._numbers)
            self._messages, self._unsent, self._losses, self._early = {}, [], {}, {}
            for worker in self._workers.values():
                worker.requests.clear()

    def fill(self, *, spare: int = 0) -> None:
        """Issue requests until enough batches are in flight.

        Args:
            spare: number of places that are about to be free.
        """
        # Drawn without the lock, as a user's sampler may take its time.
        while self._fatal is None and (request := self._window.draw(spare=spare)) is not None:
            with self._lock:
                number = next(self._numbers)
                place = self._place_of(request)
                start, self._starts[place] = self._starts[place], None
                self._window.issue(number, request)
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
                # Each time another one: a traceback refers to this object, by the frames in it.
                lost = self._fatal
                again = WorkersDied(lost.what, lost.oldest, remedy=lost.remedy)
                raise again from lost.__cause__
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
                    self._lose(holder, f"DataLoader timed out after {timeout} seconds")
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
            if self._fatal is not None:
                for worker in self._workers:
                    self._cluster.kill(worker)
            self._cluster.close()

    # In the receiving thread

    def await_event(self, seconds: float) -> None:
        """Wait until something happens in the cluster, or so long; an exception loses nothing."""
        self._cluster.wait(seconds)

    def receive(self) -> Event | None:
        """Return what has happened next in the cluster; None if nothing has."""
        return self._cluster.receive()

    def is_wanted(self, number: int) -> bool:
        """Whether the answer to a request is still waited for."""
        with self._lock:
            return number in self._messages

    def take(self, number: int, answer: Any) -> None:
        """Take the answer to a request."""
        with self._lock:
            if number not in self._messages:
                return
            request = self._messages[number][1].request
            if isinstance(request, LaneTurn):
                self._take_turn(number, request.lane, answer)
            else:
                self._settle(number, answer)
            self._send()
            if self._is_ready():
                self._answered.notify_all()

    def note(self, event: Event) -> None:
        """Note what happened other than an answer."""
        with self._lock:
            if self.stopped:
                return
            if isinstance(event, Started) and event.worker in self._workers:
                worker = self._workers[event.worker]
                worker.has_started = worker.takes_requests = True
                self._failed_starts = 0
                self._send()
            elif isinstance(event, Lost) and event.worker in self._workers:
                self._lose(self._workers[event.worker], event.why, event.remedy)
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
        if self._window.is_ready() or self._window.is_over:
            return True
        return self._has_ended

    @property
    def _has_ended(self) -> bool:
        """Whether the workers are lost, and no answer is waited for any more."""
        return self._fatal is not None and self._waits_for.isdisjoint(self._messages)

    def _die(self, died: WorkersDied, *, at: int = 0) -> None:
        """Give all workers up.

        Args:
            at: number of a request; the answers to older ones are still waited for.
        """
        if self._fatal is None or at < self._fatal_at:
            self._fatal, self._fatal_at = died, at
            self._waits_for = frozenset(number for number in self._messages if number < at)
        self._answered.notify_all()

    def _ask_for(self, place: int) -> None:
        worker = _Worker(next(self._names), place)
        self._cluster.start(worker.number, place)
        self._workers[worker.number] = self._at[place] = worker
        worker.takes_requests = self._cluster.queues

    def _send(self) -> None:
        """Send requests, oldest first, to workers that have started and have room."""
        for number in list(self._unsent):
            _, message = self._messages[number]
            turn = message.request
            if isinstance(turn, LaneTurn) and self._lanes.reader(turn) not in self._workers:
                known = self._lanes.known_answer(turn)
                if known is not None:
                    self._unsent.remove(number)
                    self._settle(number, known)
                    self._answered.notify_all()
                    continue
            worker = self._worker_for(number)
            if worker is None:
                if self._threads > 1 and number in self._losses:
                    return  # newer requests would keep from it the worker that it needs alone
                continue
            self._unsent.remove(number)
            if isinstance(turn, LaneTurn):
                message = message._replace(request=self._lanes.send(turn, worker.number))
            worker.requests[number] = time.monotonic()
            self._cluster.send(worker.number, number, message, first=self._first)

    def _worker_for(self, number: int) -> _Worker | None:
        place, message = self._messages[number]
        own = self._at[place]
        has_own = own.number in self._workers and own.takes_requests
        if self._has_states:
            return own if has_own else None
        if isinstance(message.request, LaneTurn):
            reader = self._workers.get(self._lanes.reader(message.request))
            if reader is not None:
                return reader
            if has_own:
                return own
        started = [
            worker
            for worker in self._workers.values()
            if worker.takes_requests and self._can_be_told_apart(number, worker)
        ]
        is_bound = self._takes_turns or getattr(message.request, "worker", None) is not None
        if is_bound and own in started:
            return own
        freest = min(started, key=lambda each: (len(each.requests), each is not own), default=None)
        if freest is None or isinstance(message.request, LaneTurn):
            return freest
        return freest if len(freest.requests) < self._depth else None

    def _can_be_told_apart(self, number: int, worker: _Worker) -> bool:
        """Whether the loss of a worker would tell which request has ended it.

        A request during which a worker of several threads was lost is made alone.
        """
        if self._threads == 1 or not self._losses or not worker.requests:
            return True
        return self._losses.keys().isdisjoint([number, *worker.requests])

    def _settle(self, number: int, answer: Any) -> None:
        """Keep an answer until it is delivered, and forget what was sent for it."""
        for worker in self._workers.values():
            worker.requests.pop(number, None)
        self._losses.pop(number, None)
        place, message = self._messages.pop(number)
        if isinstance(answer, Failure) and message.request.snapshot:
            # The answer could not be read and its state is lost, so the schedule must know the
            # worker.
            answer = Answer(answer, worker=place)
        self._window.answer(number, answer)

    def _take_turn(self, number: int, lane: int, answer: Any) -> None:
        """Take the answers to the turns of a lane in their order.

        A worker of several threads may give them in another one.
        """
        self._early[number] = answer
        for each, (_, message) in list(self._messages.items()):
            turn = message.request
            if isinstance(turn, LaneTurn) and turn.lane == lane:
                if each not in self._early:
                    return
                answer = self._early.pop(each)
                self._lanes.answer(turn, answer)
                self._settle(each, answer)

    def _place_of(self, request: Any) -> int:
        """Return the place whose worker is to execute a request, if it lives."""
        if request.worker is None:
            return self._next_place()
        # A worker that is several threads stands for as many of the loader's workers.
        return int(request.worker) % len(self._places)

    def _next_place(self) -> int:
        """Return whose turn it is or, out of order, who has the least to do."""
        if self._in_order:
            return next(self._turns)
        under_way = Counter(place for place, _ in self._messages.values())
        fair_share = max(1, self._limit // len(self._places))
        for place in itertools.islice(self._turns, len(self._places)):
            if under_way[place] < fair_share and self._is_open(place):
                return place
        candidates = [place for place in self._places if self._is_open(place)]
        return min(candidates or self._places, key=under_way.__getitem__)

    def _lose(self, worker: _Worker, why: str, remedy: str | None = None) -> None:
        """Ask for another worker, and have the requests of the lost one done by others."""
        del self._workers[worker.number]
        self._cluster.kill(worker.number)
        lost, worker.requests = sorted(worker.requests), {}
        what = f"worker {worker.place} was lost: {why}"
        if remedy is not None:
            self._die(WorkersDied(what, None, remedy=remedy))
            return
        if self._has_states or self._max_losses == 0:  # nobody takes over what it had
            at = lost[0] if lost else 0
            oldest = self._messages[at][1].request if lost else self._window.oldest
            self._die(WorkersDied(what, oldest), at=at)
            return
        # It was working on as many as it has threads, so only these may have ended it.
        at_work = [number for number in lost if number not in self._early]
        for number in at_work[: self._threads] if worker.has_started else ():
            self._count_loss(number, what)
        for number in lost:
            self._early.pop(number, None)
        if self._has_ended:
            return
        if lost:
            what = f"{what}, {described(self._messages[lost[0]][1].request)}"
        others = self._replaced(worker)
        if others is None:
            remedy = "look for what keeps workers from starting"
            self._die(WorkersDied(what, self._window.oldest, remedy=remedy))
            return
        self._notices.append(
            f"{what}. {others}; the {len(lost)} batches that it had are made by those that there "
            "are, and the stream goes on"
        )
        self._unsent = sorted([*lost, *self._unsent])
        self._send()

    def _replaced(self, worker: _Worker) -> str | None:
        """Ask for another worker; return what becomes of it, or None if there is none any more."""
        self._failed_starts += not worker.has_started
        if self._failed_starts <= self._max_losses:
            self._tally.worker_restarts += 1
            try:
                self._ask_for(worker.place)
                return "Another one is started in its place"
            except Exception as error:
                others = f"Another one cannot be started ({error})"
        else:
            others = f"{self._failed_starts} in a row did not start, so none is asked for any more"
        return others if self._workers else None

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
            self._die(WorkersDied(what, request, remedy=remedy), at=number)


def _always(place: int) -> bool:
    return True
