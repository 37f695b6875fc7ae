"""Dispatch: assigns requests to a cluster's workers, and reassigns those of lost workers.

When a worker is lost, the others make its batches, and another worker is started. Requests go only
to started workers, so a loader begins with the first one. If the workers keep states of the user's
objects, each request belongs to one worker, and a loss costs all batches in flight.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any

from stateful_gpu_loader.engine.pipeline import (
    Answer,
    Failure,
    Stopped,
    WorkersDied,
    described,
    without_frames,
)
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
from stateful_gpu_loader.engine.workers.worker_main import WorkerMessage
from stateful_gpu_loader.records import LaneTurn, WorkerStart

_SECONDS_TO_START = 120.0
"""Seconds without any worker, after which the user is warned, and a ``timeout`` ends the wait.

Longer than the minute in which Ray gives up a hung node.
"""


@dataclass(slots=True, eq=False)
class _Worker:
    number: int
    place: int
    has_started: bool = False
    takes_requests: bool = False
    tasks: dict[int, _Task] = field(default_factory=dict)
    """Its tasks by number, oldest first."""


@dataclass(slots=True, eq=False)
class _Task:
    """An issued request of the pass that is not delivered yet."""

    number: int
    """Number of the request; later requests have larger numbers."""
    request: Any
    place: int
    """Place of the worker that should execute the request, if that worker lives."""
    start: WorkerStart | None
    """Start that the worker receives before the request."""
    worker: _Worker | None = None
    """The worker that has the request, from sending to the answer."""
    sent_at: float = 0.0
    losses: int = 0
    """Number of workers that were lost while they executed the request."""
    early: Any = None
    """Answer, in a tuple, to a lane's turn while an earlier turn of the lane is unanswered.

    It is lost with its worker.
    """
    answer: Any = None
    is_answered: bool = False


class Dispatch:
    """The workers of one pipeline and their requests; has no reference to the pipeline.

    Args:
        connect: returns the cluster, which starts workers and carries messages.
        limit: largest number of batches in flight.
        depth: largest number of a worker's requests, as long as others have room.
        threads: number of requests that a worker executes at a time.
        in_order: deliver in the order of the requests, otherwise in the order of the answers.
        takes_turns: give requests to the living workers in turn, even if others are idle.
        max_losses: number of workers that one request may lose.
        tally: counts lost workers.
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
        # Re-entrant, because the garbage collector may end workers within it.
        self._lock = threading.RLock()
        self._has_arrived = threading.Condition(self._lock)
        self._numbers = itertools.count()
        self._names = itertools.count()
        self._first = 0
        """Number of the first request of the pass."""
        self._requests: Iterator[Any] = iter(())
        self._is_exhausted = False
        """Whether there are no more requests."""
        self._failure: Exception | None = None
        """Exception of the requests' iterator, raised after all issued requests."""
        self._is_open: Callable[[int], bool] = _always_open
        self._starts: list[WorkerStart | None] = []
        """For each place the start of its worker, until it is sent."""
        self._has_states = False
        self._turns = itertools.cycle(self._places)
        self._lanes = LaneMoves()
        self._tasks: dict[int, _Task] = {}
        """All tasks by number, oldest first."""
        self._answered: dict[int, _Task] = {}
        """The answered tasks, in the order of their answers."""
        self._unsent: list[_Task] = []
        """The tasks that no worker has, oldest first."""
        self._failed_starts = 0
        """Number of consecutive workers lost before they had started."""
        self._fatal: WorkersDied | None = None
        self._fatal_at = 0
        """Number of the request lost with the workers, or 0; older ones are still delivered."""
        self.notices: list[str] = []
        """Warnings for the user, each given once."""
        self._unheld_since: float | None = None
        """Time since which the oldest request has no worker, if so."""
        self._has_reported_waiting = False
        self.stopped = False
        self._workers: dict[int, _Worker] = {}
        self._by_place: dict[int, _Worker] = {}
        self._cluster = cluster = connect()
        try:
            for place in self._places:
                self._ask_for(place)
        except BaseException:
            cluster.close()
            raise

    @property
    def processes(self) -> list[BaseProcess]:
        """The worker processes of this machine; empty if the workers are not processes."""
        return self._cluster.processes

    # In the user's thread

    def begin(self, requests: Iterator[Any], starts: Sequence[WorkerStart] | None) -> None:
        """Abandon all requests and take the requests of another pass.

        Args:
            requests: iterator of requests, advanced whenever there is room. It may have
                ``is_open(place)``, which returns whether a worker can take unbound requests.
            starts: the start of each worker, or None.
        """
        with self._lock:
            self._requests, self._is_exhausted, self._failure = requests, False, None
            self._is_open = getattr(requests, "is_open", _always_open)
            self._starts = [None for _ in self._places] if starts is None else [*starts]
            self._has_states = starts is not None
            self._turns = itertools.cycle(self._places)
            self._lanes = LaneMoves()
            self._first = next(self._numbers)
            self._tasks, self._answered, self._unsent = {}, {}, []
            for worker in self._workers.values():
                worker.tasks.clear()

    def fill(self, *, spare: int = 0) -> None:
        """Draw requests and send them until enough batches are in flight.

        It is called in the user's thread, for samplers that draw from the global generators.

        Args:
            spare: number of batches that are about to be delivered.
        """
        while self._fatal is None and self._failure is None and not self._is_exhausted:
            if len(self._tasks) - spare >= self._limit:
                return
            try:
                # Drawn without the lock, because a user's sampler may be slow.
                request = next(self._requests)
            except StopIteration:
                self._is_exhausted = True
            except Exception as error:
                self._failure = without_frames(error)
            else:
                with self._lock:
                    # A worker of several threads counts as several workers.
                    bound = request.worker
                    place = self._next_place() if bound is None else bound % len(self._places)
                    start, self._starts[place] = self._starts[place], None
                    task = _Task(next(self._numbers), request, place, start)
                    self._tasks[task.number] = task
                    self._unsent.append(task)
                    self._send()

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for the next batch; return whether it, or the end, has come."""
        with self._lock:
            return self._has_arrived.wait_for(self.is_ready, seconds)

    def deliver(self) -> tuple[Any, Any]:
        """Return the next request and its answer.

        Raises:
            WorkersDied: no answer will come.
            Stopped: the dispatch is closed.
            StopIteration: the requests are exhausted.
        """
        with self._lock:
            if self.stopped:
                raise Stopped
            task = self._next_answered()
            if task is not None:
                del self._tasks[task.number], self._answered[task.number]
                return task.request, task.answer
            if self._fatal is not None:
                # A new exception each time, whose traceback refers to this object.
                lost = self._fatal
                raise WorkersDied(lost.message, lost.oldest, remedy=lost.remedy) from lost.__cause__
            failure, self._failure = self._failure, None
            try:
                raise StopIteration if failure is None else failure
            finally:
                del failure  # a cycle would keep the workers alive

    def is_ready(self) -> bool:
        """Whether a batch, or the end, has come."""
        with self._lock:
            if self._next_answered() is not None:
                return True
            if self._fatal is not None:
                return self._has_ended
            return not self._tasks and (self._is_exhausted or self._failure is not None)

    def depth(self) -> tuple[int, int]:
        """Return the numbers of requests without an answer and of answers to be delivered."""
        with self._lock:
            return len(self._tasks) - len(self._answered), len(self._answered)

    def look_for_overdue(self, began: float, timeout: float) -> None:
        """Give up a worker that exceeds the timeout, or waiting for a start.

        Args:
            began: time when ``next()`` began to wait.
        """
        now = time.monotonic()
        with self._lock:
            oldest = self._oldest()
            if oldest is None or self.is_ready():
                return
            if oldest.worker is not None:
                self._unheld_since = None
                since = max(began, oldest.sent_at)
                if timeout and now - since > timeout:
                    reason = f"DataLoader timed out after {timeout} seconds"
                    self._lose(oldest.worker, reason, is_overdue=True)
                return
            if self._unheld_since is None:
                self._unheld_since = now
            waited = now - max(began, self._unheld_since)
            if waited < _SECONDS_TO_START or self._has_reported_waiting:
                return
            self._has_reported_waiting = True
            text = (
                f"a batch has waited {_SECONDS_TO_START:.0f} seconds for a worker to start: "
                f"{self._cluster.resources()}"
            )
            if timeout:
                remedy = "request less with the options of worker_type, or add nodes"
                self._die(WorkersDied(text, oldest.request, remedy=remedy))
            else:
                self.notices.append(text)

    def close(self) -> None:
        """Abandon everything and end the workers."""
        with self._lock:
            self.stopped = True
            self._is_exhausted = True
            self._tasks, self._answered, self._unsent = {}, {}, []
            self._has_arrived.notify_all()
            if self._fatal is not None:
                for worker in self._workers:
                    self._cluster.kill(worker)
            self._cluster.close()

    # In the receiving thread

    def await_event(self, seconds: float) -> None:
        """Wait up to ``seconds`` for an event; an exception loses nothing."""
        self._cluster.wait(seconds)

    def receive(self) -> Event | None:
        """Return the cluster's next event; None if there is none."""
        return self._cluster.receive()

    def is_wanted(self, number: int) -> bool:
        """Whether the answer to a request is still needed."""
        with self._lock:
            return self._unanswered(number) is not None

    def take(self, number: int, answer: Any) -> None:
        with self._lock:
            task = self._unanswered(number)
            if task is None:
                return
            if isinstance(task.request, LaneTurn):
                self._take_turn(task, answer)
            else:
                self._keep_answer(task, answer)
            self._send()
            self._has_arrived.notify_all()

    def note(self, event: Event) -> None:
        """Note an event other than an answer."""
        with self._lock:
            if self.stopped:
                return
            if isinstance(event, Started) and event.worker in self._workers:
                worker = self._workers[event.worker]
                worker.has_started = worker.takes_requests = True
                self._failed_starts = 0
                self._send()
            elif isinstance(event, Lost) and event.worker in self._workers:
                self._lose(self._workers[event.worker], event.reason, event.remedy)
            elif isinstance(event, Unreadable) and (task := self._unanswered(event.number)):
                self._lose_answer(task, event.reason)
            elif isinstance(event, Severed):
                self._die(self._died(event.reason, event.remedy))

    def give_up(self, error: Exception) -> None:
        """Report that nothing more can be received."""
        with self._lock:
            died = self._died(f"batches cannot be received: {error!r}")
            died.__cause__ = without_frames(error)
            self._die(died)

    # Only with the lock

    def _next_answered(self) -> _Task | None:
        """Return the next task to deliver; None if it is not answered."""
        tasks = self._tasks if self._in_order else self._answered
        task = next(iter(tasks.values()), None)
        return task if task is not None and task.is_answered else None

    def _unanswered(self, number: int) -> _Task | None:
        task = self._tasks.get(number)
        return None if task is None or task.is_answered else task

    def _oldest(self) -> _Task | None:
        """Return the oldest task without an answer."""
        return next((task for task in self._tasks.values() if not task.is_answered), None)

    @property
    def _has_ended(self) -> bool:
        """Whether the workers are lost and no answers are awaited."""
        oldest = self._oldest()
        is_waited_for = oldest is not None and oldest.number < self._fatal_at
        return self._fatal is not None and not is_waited_for

    def _died(self, message: str, remedy: str | None = None) -> WorkersDied:
        oldest = self._oldest()
        return WorkersDied(message, None if oldest is None else oldest.request, remedy=remedy)

    def _die(self, died: WorkersDied, *, at: int = 0) -> None:
        """Give up all workers.

        Args:
            at: number of a request; the answers to older requests are still awaited.
        """
        if self._fatal is None or at < self._fatal_at:
            self._fatal, self._fatal_at = died, at
        self._has_arrived.notify_all()

    def _ask_for(self, place: int) -> None:
        worker = _Worker(next(self._names), place)
        self._cluster.start(worker.number, place)
        self._workers[worker.number] = self._by_place[place] = worker
        worker.takes_requests = self._cluster.queues

    def _send(self) -> None:
        """Send requests, oldest first, to workers that have started and have room."""
        for task in list(self._unsent):
            turn = request = task.request
            if isinstance(turn, LaneTurn) and self._lanes.reader(turn) not in self._workers:
                known = self._lanes.known_answer(turn)
                if known is not None:
                    self._unsent.remove(task)
                    self._keep_answer(task, known)
                    self._has_arrived.notify_all()
                    continue
            worker = self._worker_for(task)
            if worker is None:
                if self._threads > 1 and task.losses:
                    return  # this request needs the worker alone
                continue
            self._unsent.remove(task)
            if isinstance(turn, LaneTurn):
                request = self._lanes.send(turn, worker.number)
            task.worker, task.sent_at = worker, time.monotonic()
            worker.tasks[task.number] = task
            message = WorkerMessage(request, task.start)
            self._cluster.send(worker.number, task.number, message, first=self._first)

    def _worker_for(self, task: _Task) -> _Worker | None:
        own = self._by_place[task.place]
        has_own = own.number in self._workers and own.takes_requests
        if self._has_states:
            return own if has_own else None
        is_turn = isinstance(task.request, LaneTurn)
        if is_turn:
            reader = self._workers.get(self._lanes.reader(task.request))
            if reader is not None:
                return reader
            if has_own:
                return own
        is_bound = self._takes_turns or getattr(task.request, "worker", None) is not None
        if is_bound and has_own and (self._threads == 1 or self._would_identify(task, own)):
            return own
        candidates = [
            worker
            for worker in self._workers.values()
            if worker.takes_requests and self._would_identify(task, worker)
        ]
        least_busy = min(
            candidates, key=lambda each: (len(each.tasks), each is not own), default=None
        )
        if least_busy is None or is_turn:
            return least_busy
        return least_busy if len(least_busy.tasks) < self._depth else None

    def _would_identify(self, task: _Task, worker: _Worker) -> bool:
        """Whether a loss of the worker would show which request caused it.

        A request that has lost a worker of several threads is executed alone.
        """
        if self._threads == 1 or not worker.tasks:
            return True
        return not any(each.losses for each in (task, *worker.tasks.values()))

    def _keep_answer(self, task: _Task, answer: Any) -> None:
        """Keep an answer until it is delivered."""
        if task.worker is not None:
            del task.worker.tasks[task.number]
            task.worker = None
        elif task in self._unsent:
            self._unsent.remove(task)  # a worker that was given up has answered
        if isinstance(answer, Failure) and task.request.snapshot:
            # The answer's state is lost, so the schedule must know the worker.
            answer = Answer(answer, worker=task.place)
        task.answer, task.is_answered = answer, True
        self._answered[task.number] = task

    def _take_turn(self, task: _Task, answer: Any) -> None:
        """Take the answers to a lane's turns in the order of the turns.

        A worker of several threads may answer them in another order.
        """
        task.early = (answer,)
        for each in self._tasks.values():
            turn = each.request
            is_waiting = isinstance(turn, LaneTurn) and not each.is_answered
            if is_waiting and turn.lane == task.request.lane:
                if each.early is None:
                    return
                (answer,), each.early = each.early, None
                self._lanes.answer(turn, answer)
                self._keep_answer(each, answer)

    def _next_place(self) -> int:
        """Return the place whose turn it is; out of order, the place with the fewest requests."""
        if self._in_order:
            return next(self._turns)
        under_way = Counter(task.place for task in self._tasks.values() if not task.is_answered)
        fair_share = max(1, self._limit // len(self._places))
        for place in itertools.islice(self._turns, len(self._places)):
            if under_way[place] < fair_share and self._is_open(place):
                return place
        candidates = [place for place in self._places if self._is_open(place)]
        return min(candidates or self._places, key=under_way.__getitem__)

    def _lose(
        self, worker: _Worker, reason: str, remedy: str | None = None, *, is_overdue: bool = False
    ) -> None:
        """Start another worker, and send the lost worker's requests to others."""
        del self._workers[worker.number]
        self._cluster.kill(worker.number)
        lost, worker.tasks = _oldest_first(worker.tasks.values()), {}
        for task in lost:
            task.worker = None
        message = f"worker {worker.place} was lost: {reason}"
        if remedy is not None:
            self._die(WorkersDied(message, None, remedy=remedy))
            return
        if self._has_states or self._max_losses == 0:  # no worker takes over its requests
            if lost:
                self._die(WorkersDied(message, lost[0].request), at=lost[0].number)
            else:
                self._die(self._died(message))
            return
        # A worker executes one request per thread; only these may have ended it.
        in_progress = [task for task in lost if task.early is None]
        for task in in_progress[: self._threads] if worker.has_started or is_overdue else ():
            self._count_loss(task, message)
        for task in lost:
            task.early = None
        if self._has_ended:
            return
        if lost:
            message = f"{message}, {described(lost[0].request)}"
        others = self._replaced(worker)
        if others is None:
            self._die(self._died(message, "find out what keeps workers from starting"))
            return
        self.notices.append(
            f"{message}. {others}; the lost worker's {len(lost)} batches are made by the others, "
            "and the stream goes on"
        )
        self._unsent = _oldest_first([*lost, *self._unsent])
        self._send()

    def _replaced(self, worker: _Worker) -> str | None:
        """Start another worker; return the outcome in words, or None if no worker is left."""
        self._failed_starts += not worker.has_started
        if self._failed_starts <= self._max_losses:
            self._tally.worker_restarts += 1
            try:
                self._ask_for(worker.place)
                return "Another worker is started in its place"
            except Exception as error:
                others = f"Another worker cannot be started ({error})"
        else:
            others = f"{self._failed_starts} workers in a row did not start, so no more are started"
        return others if self._workers else None

    def _lose_answer(self, task: _Task, reason: str) -> None:
        """Execute a request again whose answer cannot be read."""
        if task.worker is None:
            return  # its worker is lost too
        message = f"an answer was lost: {reason}"
        if isinstance(task.request, LaneTurn) or self._has_states:
            # Its worker has advanced, so the next answers would not continue from it.
            self._die(self._died(message))
            return
        del task.worker.tasks[task.number]
        task.worker = None
        self._count_loss(task, message)
        self._unsent = _oldest_first([task, *self._unsent])
        self._send()

    def _count_loss(self, task: _Task, message: str) -> None:
        task.losses += 1
        if task.losses > self._max_losses:
            remedy = (
                f"find out what ends the workers at this batch: {task.losses} were lost while they "
                f"made it, and max_worker_restarts is {self._max_losses}"
            )
            self._die(WorkersDied(message, task.request, remedy=remedy), at=task.number)


def _oldest_first(tasks: Iterable[_Task]) -> list[_Task]:
    return sorted(tasks, key=lambda task: task.number)


def _always_open(place: int) -> bool:
    return True
