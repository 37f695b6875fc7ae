"""WorkerSchedule: a pass over an iterable dataset, in which the workers' iterators take turns.

The order is torch's: round robin over the workers that have not ended, so the workers' states and
the next worker are sufficient to resume. The :class:`WorkerLedger` of these states also serves
map-style datasets with a state.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

from stateful_gpu_loader.engine.pipeline import NOTHING, Answer
from stateful_gpu_loader.engine.schedules.schedule import Arrival
from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.records import Turn, WorkerStart
from stateful_gpu_loader.state.epoch_progress import Address
from stateful_gpu_loader.state.user_states import UserStates, freeze, thaw, worker_state


class WorkerSchedule:
    """The turns of all workers until each has ended.

    Args:
        place: where the pass begins; its ``user`` holds the workers' states.
        loads: whether the states must be loaded; otherwise the workers have them.
        rank, num_replicas: rank and number of ranks, for keys; the dataset divides itself.
        interval: ``snapshot_every_n_steps``; 1 is used without workers and with ``in_order=False``.
        in_order: False delivers batches as they are finished, but each worker's batches in order.
        keeps_workers: whether the next pass uses the same dataset objects.
        length: returns the result of ``len(dataset)``, if it was called.
    """

    def __init__(
        self,
        place: Address,
        *,
        loads: bool,
        seed: int,
        num_workers: int,
        rank: int,
        num_replicas: int,
        interval: int,
        in_order: bool,
        keeps_workers: bool,
        length: Callable[[], int | None],
    ) -> None:
        self._seed, self._epoch = seed, place.epoch
        self._num_workers = num_workers
        self._workers = max(1, num_workers)
        self._rank, self._num_replicas = rank, num_replicas
        self._in_order = in_order
        self._interval = interval if in_order and num_workers else 1
        self._keeps_workers = keeps_workers
        self._length = length
        self._position = place.position
        self._loads = loads
        user = place.user or UserStates()
        states = user.workers or (None,) * self._workers
        self._ledger = WorkerLedger(states, interval=self._interval)
        self._next_worker = user.next_worker
        self._ended: set[int] = set()
        self._fetches: list[int] = []
        """Number of fetches of each worker, for ``in_order=False``."""
        # Numbers of batches since the workers started: made, delivered, made at the snapshot.
        self._made, self._delivered, self._at_snapshot = 0, user.steps, 0
        self._turns = _Turns(self._workers, self._next_worker, self._ended, self._ledger)

    @property
    def is_interrupted(self) -> bool:
        return self._turns.is_interrupted

    def requests(self) -> Iterator[Turn]:
        self._delivered = max(self._made, self._delivered) - self._at_snapshot
        self._made = self._at_snapshot = 0
        self._ledger = WorkerLedger(self._ledger.states, interval=self._interval)
        self._ended = set()
        if not self._in_order:
            states = map(_thawed, self._ledger.states)
            self._fetches = [state["fetches"] for state in states]
        kind = _Turns if self._in_order else _UnorderedTurns
        self._turns = kind(self._workers, self._next_worker, self._ended, self._ledger)
        return self._turns

    def starts(self) -> Sequence[WorkerStart]:
        loads, self._loads = self._loads, True
        if loads:
            _warn_of_reading_again(self._ledger.states)
        return worker_starts(
            self._ledger.states,
            seed=self._seed,
            epoch=self._epoch,
            loads=range(self._workers) if loads else (),
            rank=self._rank,
            num_replicas=self._num_replicas,
        )

    def arrive(self, request: Turn, answer: Answer | None) -> Arrival | None:
        """Key the batch by the number of earlier batches, as its samples' positions are not known.

        If the order of delivery depends on timing, the worker and its batch's number give that
        number.
        """
        if self._is_replay:
            return None
        if self._in_order or answer is None:
            return Arrival(self._position, request)
        return Arrival(self._fetches[answer.worker] * self._workers + answer.worker, request)

    def deliver(self, request: Turn, answer: Answer | None) -> Address:
        worker = request.worker
        if worker is None:
            worker = 0 if answer is None else answer.worker
        if answer is not None and answer.payload is NOTHING:
            self._ended.add(worker)
        else:
            if not self._is_replay:
                self._position += 1
                self._check_length()
            self._made += 1
            if not self._in_order:
                self._fetches[worker] += 1
        self._ledger.deliver(worker, answer)
        if self._ledger.take_snapshot():
            self._at_snapshot = self._made
            self._next_worker = (worker + 1) % self._workers
        return self._place()

    def fail(self, request: Turn, answer: Answer | None) -> Address | None:
        """Deliver a failed request, because the iterator has advanced."""
        was_delivered = self._is_replay
        place = self.deliver(request, answer)
        return None if was_delivered else place

    def end(self) -> Address:
        if self._is_replay:
            raise StateMismatch(
                "user's steps",
                saved=self._delivered,
                present=f"{self._made}, after which the dataset ends",
                remedy="keep the dataset and the batch size: the state counts the batches after "
                "its last snapshot",
            )
        between = tuple(map(_between_passes, self._ledger.latest())) if self._keeps_workers else ()
        if not any(between):
            return Address(self._epoch + 1, 0)
        user = UserStates(num_workers=self._num_workers, workers=between)
        return Address(self._epoch + 1, 0, user=user)

    @property
    def _is_replay(self) -> bool:
        return self._made < self._delivered

    def _place(self) -> Address:
        steps = max(self._made, self._delivered) - self._at_snapshot
        user = UserStates(
            num_workers=self._num_workers,
            workers=self._ledger.states,
            next_worker=self._next_worker,
            base=self._position - steps,
            steps=steps,
        )
        return Address(self._epoch, self._position, user=user)

    def _check_length(self) -> None:
        promised = self._length()
        if promised is not None and self._position > promised:
            text = (
                f"Length of IterableDataset was reported to be {promised} (when accessing "
                f"len(dataloader)), but {self._position} samples have been fetched. "
            )
            if self._num_workers:
                text += (
                    "For multiprocessing data-loading, this could be caused by not properly "
                    "configuring the IterableDataset replica at each worker. Please see "
                    "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset "
                    "for examples."
                )
            warnings.warn(text, stacklevel=5)


class WorkerLedger:
    """Serialized states of the workers of one pass.

    A snapshot holds the state of every worker after its last batch before the snapshot, which is
    sent with that batch. Batches after a snapshot are counted, and made again after a resume.

    Args:
        states: state of each worker at the start of the pass; None for a worker without a state.
        interval: ``snapshot_every_n_steps``; 0 takes no snapshot after the first.

    >>> ledger = WorkerLedger([None, None], interval=4)
    >>> [ledger.wants_snapshot(ordinal) for ordinal in range(4)]
    [False, False, True, True]
    """

    def __init__(self, states: Sequence[bytes | None], *, interval: int) -> None:
        self._latest = list(states)
        self._interval = interval
        self._stale: set[int] = set()
        """Workers that have delivered a batch since their latest state."""
        self.states: tuple[bytes | None, ...] = tuple(states)

    def latest(self) -> tuple[bytes | None, ...]:
        return tuple(self._latest)

    def wants_snapshot(self, ordinal: int) -> bool:
        """Whether the worker's state must be sent with this request's batch."""
        interval = self._interval
        return interval > 0 and ordinal % interval + len(self._latest) >= interval

    def deliver(self, worker: int, answer: Answer | None) -> None:
        if answer is not None and answer.snapshot is not None:
            self._latest[worker] = answer.snapshot
            self._stale.discard(worker)
        else:
            self._stale.add(worker)

    def take_snapshot(self) -> bool:
        """Take a snapshot unless a worker delivered after its latest state; return whether."""
        if not self._stale:
            self.states = tuple(self._latest)
        return not self._stale


def worker_starts(
    states: Sequence[bytes | None],
    *,
    seed: int,
    epoch: int,
    loads: Container[int],
    rank: int = 0,
    num_replicas: int = 1,
) -> list[WorkerStart]:
    """Return the starts of one rank's workers, before their first requests.

    Args:
        states: state of each worker.
        seed, epoch: seed and epoch of the pass.
        loads: workers that must load their states.
        rank, num_replicas: rank and number of ranks, for keys that differ between all workers.
    """
    return [
        WorkerStart(
            seed=seed,
            epoch=epoch,
            place=worker * num_replicas + rank,
            stride=len(states) * num_replicas,
            state=state if worker in loads else None,
        )
        for worker, state in enumerate(states)
    ]


class _Turns:
    """Turns in round robin over the workers that are not yet known to have ended."""

    def __init__(self, workers: int, first: int, ended: set[int], ledger: WorkerLedger) -> None:
        self._workers = workers
        self._next = first
        self._ended = ended
        self._ledger = ledger
        self._ordinal = 0
        self.is_interrupted = False

    def __iter__(self) -> _Turns:
        return self

    def __next__(self) -> Turn:
        if len(self._ended) == self._workers:
            raise StopIteration
        self.is_interrupted = True
        worker = self._choose()
        turn = Turn(self._ordinal, worker, self._ledger.wants_snapshot(self._ordinal))
        self._ordinal += 1
        self.is_interrupted = False
        return turn

    def _choose(self) -> int | None:
        while self._next in self._ended:
            self._next = (self._next + 1) % self._workers
        worker, self._next = self._next, (self._next + 1) % self._workers
        return worker


class _UnorderedTurns(_Turns):
    """Turns for any worker, so that slow workers do not block others."""

    def is_open(self, worker: int) -> bool:
        """Whether a worker is not yet known to have ended."""
        return worker not in self._ended

    def _choose(self) -> None:
        return None


def _thawed(state: bytes | None) -> dict[str, Any]:
    return worker_state() if state is None else dict(thaw(state))


def _between_passes(state: bytes | None) -> bytes | None:
    """Return a worker's state between passes: the dataset's."""
    dataset = None if state is None else thaw(state)["dataset"]
    return None if dataset is None else freeze(worker_state(dataset=dataset), "a dataset")


def _warn_of_reading_again(states: Sequence[bytes | None]) -> None:
    """Warn that iterators without a state must read samples again."""
    samples = 0
    for state in states:
        worker = _thawed(state)
        if worker["dataset"] is None and worker["iterator"] is None and not worker["ended"]:
            samples += worker["samples"]
    if samples:
        warnings.warn(
            f"{samples} samples of the iterable dataset are read again to reach the position of "
            "the saved state. To avoid it, give the dataset, or its iterator, state_dict() and "
            "load_state_dict()",
            stacklevel=6,
        )
