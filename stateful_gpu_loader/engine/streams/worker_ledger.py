"""What is known of the workers' states: as of the batches delivered, every so many steps."""

from __future__ import annotations

from collections.abc import Container, Sequence

from stateful_gpu_loader.engine.pipeline import Answer
from stateful_gpu_loader.records import WorkerStart


class WorkerLedger:
    """Frozen states of the workers of one pass.

    Workers send their state with those batches only after which a whole snapshot is taken: the
    last one of each worker before it. Between two snapshots batches are counted, and made again
    after a resume.

    Args:
        states: of each worker at the pass's start; None for one that begins anew.
        interval: ``snapshot_every_n_steps``; 0 takes no snapshot after the first.

    >>> ledger = WorkerLedger([None, None], interval=4)
    >>> [ledger.wants_snapshot(ordinal) for ordinal in range(4)]
    [False, False, True, True]
    """

    def __init__(self, states: Sequence[bytes | None], *, interval: int) -> None:
        self._latest = list(states)
        self._interval = interval
        self._stale: set[int] = set()
        self.states: tuple[bytes | None, ...] = tuple(states)
        """As of the last snapshot."""

    def latest(self) -> tuple[bytes | None, ...]:
        """As of the last batch of each worker that had its state with it."""
        return tuple(self._latest)

    def wants_snapshot(self, ordinal: int) -> bool:
        """Whether the worker's state must travel with this request's batch."""
        interval = self._interval
        return interval > 0 and ordinal % interval + len(self._latest) >= interval

    def deliver(self, ordinal: int, answer: Answer | None) -> bool:
        """A batch was delivered; returns whether a snapshot is complete behind it.

        A worker that could not tell its state when it was asked leaves none complete until it can.
        """
        if answer is not None and answer.snapshot is not None:
            self._latest[answer.worker] = answer.snapshot
            self._stale.discard(answer.worker)
        elif answer is not None and self.wants_snapshot(ordinal):
            self._stale.add(answer.worker)
        if self._stale or self._interval == 0 or (ordinal + 1) % self._interval:
            return False
        self.states = tuple(self._latest)
        return True


def worker_starts(
    states: Sequence[bytes | None],
    *,
    seed: int,
    epoch: int,
    loads: Container[int],
    rank: int = 0,
    num_replicas: int = 1,
) -> list[WorkerStart]:
    """What the workers of one rank are told before their first request.

    Args:
        states: of each worker.
        seed, epoch: of the pass.
        loads: the workers that load their state; the objects of the others are there already.
        rank, num_replicas: of the process; no two workers of all have one key.
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
