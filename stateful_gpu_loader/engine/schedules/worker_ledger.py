"""WorkerLedger: the workers' states after delivered batches, at intervals of steps."""

from __future__ import annotations

from collections.abc import Container, Sequence

from stateful_gpu_loader.engine.pipeline import Answer
from stateful_gpu_loader.records import WorkerStart


class WorkerLedger:
    """The serialized states of the workers of one pass.

    A snapshot holds the state of every worker after its last batch before the snapshot. Workers
    send their state only with those batches. Batches after a snapshot are counted, and made again
    after a resume. Workers with a small state send it with every batch.

    Args:
        states: state of each worker at the start of the pass; None for a worker without one.
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
        """States at the last snapshot."""

    def latest(self) -> tuple[bytes | None, ...]:
        """Return each worker's latest state that came with a batch."""
        return tuple(self._latest)

    def wants_snapshot(self, ordinal: int) -> bool:
        """Whether the worker's state must be sent with this request's batch."""
        interval = self._interval
        return interval > 0 and ordinal % interval + len(self._latest) >= interval

    def deliver(self, worker: int, answer: Answer | None) -> None:
        """Note that a batch of this worker was delivered."""
        if answer is not None and answer.snapshot is not None:
            self._latest[worker] = answer.snapshot
            self._stale.discard(worker)
        else:
            self._stale.add(worker)

    def take_snapshot(self) -> bool:
        """Take a snapshot and return True, if no worker delivered since its latest state."""
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
    """Return what the workers of one rank begin with before their first request.

    Args:
        states: state of each worker.
        seed, epoch: seed and epoch of the pass.
        loads: the workers that must load their state; those not listed have it already.
        rank, num_replicas: rank of this process and number of ranks, so that the keys of all
            workers differ.
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
