"""One loader in its place among the trainer's: it counts what is fetched of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stateful_gpu_loader.integrations.lightning.records import Record
from stateful_gpu_loader.integrations.shared.every_rank import (
    is_same_on_all_ranks,
    load_own_state,
    state_of_all_ranks,
)
from stateful_gpu_loader.samplers import OWN_SAMPLERS


class Counted:
    """A loader in one epoch of the trainer's, in which it may begin several passes.

    Args:
        loader: whose batches are counted.
        limit: batches of a pass after which nothing more is fetched; ``inf`` if nothing is cut.
        before: the same loader as it was counted until now.
    """

    def __init__(self, loader: Any, *, limit: float, before: Counted | None) -> None:
        self.loader = loader
        self.delivered = 0
        """Batches fetched in this epoch, since it was begun or resumed."""
        self._limit = limit
        self._start = Record(state={})
        self._ends: list[int] = []
        self._has_empty_pass = False
        self._follows = isinstance(loader.sampler, OWN_SAMPLERS)
        self._is_open: bool = before is not None and before._is_open
        """Whether the loader's last pass was begun and its end not seen."""
        self._was_open: bool = self._is_open
        """The same, when this epoch began."""
        self._is_idle: bool = before is not None and before._is_idle
        """Whether nothing was fetched since a state was loaded."""

    def __iter__(self) -> Iterator[Any]:
        if self._has_empty_pass:
            # It has ended in this epoch: whoever combines loaders has to see that again.
            self._has_empty_pass = False
            self._ends.append(0)
            return iter(())
        is_cycled = self._start.ended and not self.delivered and len(self._ends) == 1
        return _Fetched(self, iter(self.loader), may_be_spent=is_cycled)

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def index_before(self) -> int:
        """Batches of the pass under way that were used before it was resumed."""
        is_first = len(self._ends) == int(self._start.ended)
        return self._start.batches if is_first else 0

    @property
    def is_cut(self) -> bool:
        """Whether nothing more is fetched of this pass."""
        return self._used(self.delivered) >= self._limit

    def restart(self, start: Record | None) -> None:
        """A new epoch of the trainer, or one that is resumed at ``start``."""
        self.delivered = 0
        self._was_open = self._is_open
        self._start = start or Record(state={})
        self._ends.clear()
        self._has_empty_pass = self._start.ended

    def adopt(self, batches: Iterator[Any], delivered: int) -> Iterator[Any]:
        """Go on with an iterator that was begun before anybody counted."""
        self.delivered = delivered
        if delivered:
            self._is_open, self._is_idle = True, False
        return _Fetched(self, batches)

    def note_batch(self) -> None:
        """The loader has delivered a batch."""
        self.delivered += 1
        self._is_open, self._is_idle = True, False

    def note_end(self) -> None:
        """The loader has no more batches in this pass."""
        self._ends.append(self.delivered)
        self._is_open = self._is_idle = False

    def record(self, delivered: int, *, is_over: bool) -> Record:
        """Where the loader stood after so many batches of this epoch.

        Args:
            delivered: of the batches that were fetched, those that were used.
            is_over: whether the epoch is, so that a new pass comes next.
        """
        ago = self.delivered - delivered
        used, ended = self._used(delivered), bool(self._ends_until(delivered))
        if self._was_open and not delivered:
            return self._after_open_pass(ago, ended=ended and not is_over)
        if is_over and used:
            return self._next_pass(ago, ended=False)
        if used >= self._limit:
            return self._next_pass(ago, ended=True)
        state = self._state(ago)
        return Record(state=state) if is_over else Record(state=state, batches=used, ended=ended)

    def load(self, record: Record, epoch: int) -> None:
        """Put the loader where a record says; what the pass before it left behind is made again.

        Args:
            epoch: of the trainer, which a sampler of this package follows.
        """
        self.check(record, epoch)
        self._is_open = self._was_open = record.replay
        if record.replay:
            for _ in self.loader:
                break
            self._is_idle = False
        if record.replay and self._follows:
            self.loader.set_epoch(epoch)
        elif record.replay or record.is_at_start:
            self._tell_sampler(epoch)

    def begin_epoch(self, epoch: int) -> None:
        """Lightning has set the sampler's epoch: a place that nothing was used of follows it."""
        if self._is_idle and self._follows:
            self.load(Record(state=self.loader.state_dict()), epoch)

    def keep_epoch(self) -> None:
        """Lightning has set the sampler's epoch for the pass that is under way already.

        A loader that is cycled does not begin that epoch again.
        """
        if self._is_open and self.delivered and self._follows:
            self.loader.set_epoch(self.loader.state_dict()["epoch"] + 1)

    def check(self, record: Record, epoch: int) -> None:
        """Load the record's state and no more.

        Raises:
            StateMismatch: it is no state of this loader; nothing was changed.
        """
        state = record.state
        if record.is_at_start and self._follows:
            state = in_epoch(state, epoch)
        load_own_state(self.loader, state)
        self._is_open = self._was_open = False
        self._is_idle = True

    def _tell_sampler(self, epoch: int) -> None:
        """As Lightning does before an epoch: what a user's sampler was told went with the load."""
        batch_sampler = getattr(self.loader, "batch_sampler", None)
        samplers = [self.loader.sampler, getattr(batch_sampler, "sampler", None)]
        for sampler in {id(sampler): sampler for sampler in samplers}.values():
            if not self._follows and hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)

    def _used(self, delivered: int) -> int:
        ends = self._ends_until(delivered)
        is_first = len(ends) == int(self._start.ended)
        since = delivered - (ends[-1] if ends else 0)
        return since + (self._start.batches if is_first else 0)

    def _ends_until(self, delivered: int) -> list[int]:
        return [end for end in self._ends if end <= delivered]

    def _after_open_pass(self, ago: int, *, ended: bool) -> Record:
        """Nothing of this epoch was used, and the pass before it was broken off."""
        before = self._state(ago + 1)
        if not _is_plain(before):
            return Record(state=before, ended=ended, replay=True)
        return Record(state=self._state(ago)) if ago else self._next_pass(0, ended=ended)

    def _next_pass(self, ago: int, *, ended: bool) -> Record:
        state = self._state(ago)
        if not _is_plain(state):
            return Record(state=self._state(ago + 1), ended=ended, replay=True)
        start = {"epoch": state["epoch"] + 1, "position": 0, "ahead": None, "index_digest": None}
        return Record(state={**state, **start}, ended=ended)

    def _state(self, ago: int) -> dict[str, Any]:
        loader = self.loader
        if is_same_on_all_ranks(loader):
            state: dict[str, Any] = loader.state_dict(batches_ago=ago)
            return state
        return state_of_all_ranks(loader, ago)


def in_epoch(state: dict[str, Any], epoch: int) -> dict[str, Any]:
    """A state between two passes, of another epoch; the states of each rank have it inside."""
    if "epoch" in state:
        return {**state, "epoch": epoch}
    return {
        key: in_epoch(value, epoch) if isinstance(value, dict) else value
        for key, value in state.items()
    }


def _is_plain(state: dict[str, Any]) -> bool:
    """Whether a place in it is an epoch and a position."""
    return state.get("user", 0) is None and not any(key[:5] == "lane_" for key in state)


class _Fetched(Iterator[Any]):
    """
    Args:
        may_be_spent: whether the pass may have nothing left although another has begun it.
    """

    def __init__(
        self, counted: Counted, batches: Iterator[Any], *, may_be_spent: bool = False
    ) -> None:
        self._counted = counted
        self._batches = batches
        self._may_be_spent = may_be_spent

    def __next__(self) -> Any:
        if self._counted.is_cut:
            raise StopIteration
        try:
            batch = next(self._batches)
        except StopIteration:
            self._counted.note_end()
            if not self._may_be_spent:
                raise
            self._may_be_spent = False
            self._batches = iter(self._counted.loader)
            return next(self)
        self._may_be_spent = False
        self._counted.note_batch()
        return batch
