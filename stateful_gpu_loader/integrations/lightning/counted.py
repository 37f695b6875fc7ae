"""One loader among those that Lightning fetches from: how many batches it has delivered so far."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stateful_gpu_loader.integrations.lightning.records import Record
from stateful_gpu_loader.integrations.shared.every_rank import load_own_state
from stateful_gpu_loader.loader import StatefulGPULoader
from stateful_gpu_loader.samplers import OWN_SAMPLERS


class Counted(Iterator[Any]):
    """Stands in for a loader in Lightning's CombinedLoader and counts what is fetched of it.

    A run is one training epoch or one validation. During a run Lightning may begin several passes
    over the loader (it cycles the shorter of two) or leave a pass before its end (because of a
    limit, or because another loader has ended).

    Args:
        loader: the StatefulGPULoader.
        start: where its first run begins; None is where the loader stands.
    """

    def __init__(self, loader: StatefulGPULoader[Any], start: Record | None) -> None:
        self.loader = loader
        self.limit: float = float("inf")
        """Batches of a pass after which Lightning fetches no more of it."""
        self._takes_trainers_epoch = isinstance(loader.sampler, OWN_SAMPLERS)
        self._batches: Iterator[Any] = iter(())
        self._may_be_empty = False
        self.begin_run(start)

    def begin_run(self, start: Record | None) -> None:
        """Begin to count anew; ``start`` is where the first batch of the run comes from."""
        self._start = start
        self.begin_again()

    def begin_again(self) -> None:
        """Begin to count anew, from where the present run began."""
        self.delivered = 0
        self._ends: list[int] = []
        """For each end of a pass in this run, how many batches were delivered before it."""

    @property
    def start(self) -> Record:
        """Where the first batch of the run comes from.

        The loader is asked no sooner than before its first batch: its state settles a seed that is
        not decided, and whatever draws random numbers until then would change the order.
        """
        if self._start is None:
            self._start = Record(state=self.loader.state_dict())
        return self._start

    @start.setter
    def start(self, start: Record) -> None:
        self._start = start

    def go_on_with(self, batches: Iterator[Any], delivered: int) -> None:
        """Take over an iterator from which so many batches were fetched without being counted."""
        self._batches, self.delivered = batches, delivered

    def __iter__(self) -> Counted:
        if self.start.ended and not self._ends:
            # The loader had ended before the run was resumed: Lightning has to see that again.
            self._batches = iter(())
        else:
            # A loader that was saved after the last batch of a repeated pass has nothing left in
            # that pass, where Lightning expects a batch.
            self._may_be_empty = self.start.ended and not self.delivered
            self._batches = iter(self.loader)
        return self

    def __next__(self) -> Any:
        # Which asks for the start, before the first batch.
        if self._used(self.delivered) >= self.limit:
            self._batches = iter(())
            raise StopIteration
        try:
            batch = next(self._batches)
        except StopIteration:
            self._ends.append(self.delivered)
            if not self._may_be_empty:
                raise
            self._may_be_empty, self._batches = False, iter(self.loader)
            return next(self)
        self._may_be_empty = False
        self.delivered += 1
        return batch

    def __len__(self) -> int:
        return len(self.loader)

    def release(self) -> None:
        """Let go of the iterator, and so of the loader's workers."""
        self._batches = iter(())

    def record(self, delivered: int, *, is_over: bool) -> Record:
        """Where the loader stood after the first so many batches of this run.

        Args:
            delivered: how many of the fetched batches were used.
            is_over: whether the run is over, so that the next batch is the first of a new pass.
        """
        ends = self._ends_until(delivered)
        if not delivered and len(ends) <= self.start.ended:
            return self.start.given_up() if is_over else self.start
        used, ago = self._used(delivered), self.delivered - delivered
        if used and (is_over or used >= self.limit):
            return self._after_left_pass(ago, ended=not is_over)
        state = self.loader.state_dict(batches_ago=ago)
        if is_over:
            return Record(state=state)
        return Record(state=state, batches=used, ended=bool(ends))

    def check(self, record: Record, epoch: int) -> Record:
        """Load a record of a checkpoint.

        Returns:
            The record with the state of this rank alone.

        Raises:
            StateMismatch: it is no state of this loader; nothing was changed.
        """
        state = record.state
        if record.is_at_start and self._takes_trainers_epoch:
            state = in_epoch(state, epoch)
        load_own_state(self.loader, state)
        return record.with_state(self.loader.state_dict())

    def load(self, epoch: int) -> None:
        """Put the loader where the run begins.

        Args:
            epoch: of the trainer, which samplers of this package follow.
        """
        self.check(self.start, epoch)
        if self.start.replay:
            for _ in self.loader:
                break
        if self.start.replay and self._takes_trainers_epoch:
            self.loader.set_epoch(epoch)
        elif self.start.replay or self.start.is_at_start:
            self._tell_sampler(epoch)

    def number_passes_from(self, epoch: int) -> None:
        """Let a loader that replaces another begin with this epoch instead of its first one."""
        if not self._takes_trainers_epoch:
            self.start = self.start.with_state(in_epoch(self.start.state, epoch))

    def skip_epoch_under_way(self) -> None:
        """Make the next pass one of the next epoch, although Lightning has just asked for this one.

        Lightning fetches the first batch of a fit before it sets the sampler's epoch.
        """
        if self._takes_trainers_epoch and self._used(self.delivered):
            self.loader.set_epoch(self.loader.state_dict()["epoch"] + 1)

    def _tell_sampler(self, epoch: int) -> None:
        """Tell the user's sampler its epoch, as Lightning did before the state was loaded."""
        batch_sampler = getattr(self.loader, "batch_sampler", None)
        samplers = [self.loader.sampler, getattr(batch_sampler, "sampler", None)]
        for sampler in {id(sampler): sampler for sampler in samplers}.values():
            if not self._takes_trainers_epoch and hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)

    def _used(self, delivered: int) -> int:
        """How many batches of its pass the batch with this number, from 1, completes."""
        ends = self._ends_until(delivered)
        if len(ends) == self.start.ended:
            return self.start.batches + delivered
        return delivered - (ends[-1] if ends else 0)

    def _ends_until(self, delivered: int) -> list[int]:
        return [end for end in self._ends if end <= delivered]

    def _after_left_pass(self, ago: int, *, ended: bool) -> Record:
        """The beginning of the next pass, where the present one is left before its end."""
        state = self.loader.state_dict(batches_ago=ago)
        if state.get("user", 0) is not None or any(key.startswith("lane_") for key in state):
            # What a dataset or sampler holds when its pass is left, only leaving it can tell.
            before = self.loader.state_dict(batches_ago=ago + 1)
            return Record(state=before, ended=ended, replay=True)
        start = {"epoch": state["epoch"] + 1, "position": 0, "ahead": None, "index_digest": None}
        return Record(state={**state, **start}, ended=ended)


def in_epoch(state: dict[str, Any], epoch: int) -> dict[str, Any]:
    """A state between two passes as that of another epoch; it may hold a state for each rank."""
    if "epoch" in state:
        return {**state, "epoch": epoch}
    return {
        key: in_epoch(value, epoch) if isinstance(value, dict) else value
        for key, value in state.items()
    }
