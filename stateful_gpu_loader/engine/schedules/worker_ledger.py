"""What is known of the workers' states: as of the batches delivered, every so many steps."""

from __future__ import annotations

from collections.abc import Container, Sequence

from stateful_gpu_loader.engine.pipeline import Answer
from stateful_gpu_loader.records import WorkerStart


class WorkerLedger:
    """Frozen states of the workers of one pass.

    Workers are asked for their state with those batches only after which a whole snapshot is
    taken: the last one of each worker before it. Between two snapshots batches are counted, and
    made again after a resume. Those whose state is small send it with every batch, unasked.

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
        """Workers that have delivered a batch since their latest state."""
        self.states: tuple[bytes | None, ...] = tuple(states)
        """As of the last snapshot."""

    def latest(self) -> tuple[bytes | None, ...]:
        """As of the last batch of each worker that had its state with it."""
        return tuple(self._latest)

    def wants_snapshot(self, ordinal: int) -> bool:
        """Whether the worker's state must travel with this request's batch."""
        interval = self._interval
        return interval > 0 and ordinal % interval + len(self._latest) >= interval

    def deliver(self, worker: int, answer: Answer | None) -> None:
        """A batch of this worker was delivered."""
        if answer is not None and answer.snapshot is not None:
            self._latest[worker] = answer.snapshot
            self._stale.discard(worker)
        else:
            self._stale.add(worker)

    def take_snapshot(self) -> bool:
        """Take one, unless the state behind the last batch of some worker is not known."""
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
