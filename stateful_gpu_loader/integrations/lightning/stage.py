"""The loaders of Lightning's training or validation, with counts of fetched and used batches.

A state describes the used batches, which Lightning counts. The batches fetched beyond them
(Lightning fetches one ahead from a loader without length) are counted here, for each loader.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.integrations.lightning.records import Record, check_names
from stateful_gpu_loader.integrations.shared.every_rank import (
    load_all,
    load_own_state,
    state_for_all_ranks,
)
from stateful_gpu_loader.loader import StatefulGPULoader
from stateful_gpu_loader.samplers import OWN_SAMPLERS


@dataclass(frozen=True, kw_only=True)
class Place:
    """Places of a stage's loaders on all ranks."""

    records: Mapping[str, Record]
    epoch: int
    """The trainer's epoch of the next batches."""
    batches: int
    """Number of batches used so far in this epoch or validation."""
    is_over: bool = False
    """Whether the last run is over, so that the next batch begins another."""


class Stage(Iterator[Any]):
    """Replaces the CombinedLoader that Lightning's data fetcher fetches from.

    A run is one training epoch or one validation. Until one of its batches is used, a run can begin
    again, as after Lightning's sanity check.

    Args:
        name: ``"train"`` or ``"val"``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.saved: Place | None = None
        """Place from a loaded checkpoint, held until the loaders are known."""
        self.counted: dict[str, Counted] = {}
        self.has_to_load = False
        """Whether the loaders must be moved to the start of the run."""
        self.epoch = 0
        """The trainer's epoch of the run."""
        self._combined: Any = None
        self._original: Any = None
        """Lightning's CombinedLoader; ``_combined`` is a copy with counted loaders."""
        self._fetcher: Any = None
        self._progress: Any = None
        self._resumed_at = 0
        """Number of batches of this run used before it was resumed."""
        self._has_run = False
        """Whether a batch was used in this fit."""
        self._marks: deque[list[int]] = deque(maxlen=16)  # as far back as batches_ago= reaches
        """Number of batches that each loader had delivered before each fetch of this run."""
        self._clear()

    def _clear(self) -> None:
        self._fetched = 0
        self._is_exhausted = False
        self._processed_before: int | None = None
        """Lightning's batch count when the first batch of this run was used."""
        self._marks.clear()

    def begin_fit(self) -> None:
        """Start the next run where an earlier fit has left the loaders."""
        self.saved, self._has_run = None, False
        self.end_run()

    def watch(self, loop: Any) -> bool:
        """Count the batches that a Lightning loop fetches from now on.

        Args:
            loop: Lightning's loop, whose data fetcher may have fetched a batch already.

        Returns:
            Whether the CombinedLoader or the fetcher has changed since the last call.
        """
        combined, fetcher = loop._combined_loader, loop._data_fetcher
        if combined is self._original and fetcher is self._fetcher:
            return False
        self._original, self._fetcher = combined, fetcher
        self._progress = getattr(loop, "epoch_loop", loop).batch_progress
        self.epoch = int(loop.trainer.current_epoch)
        prefetched = len(getattr(fetcher, "batches", ()))
        is_sequential = combined._mode == "sequential"
        flattened, places, before = list(combined.flattened), _places_of(combined), self.counted
        known = {id(each.loader): each for each in before.values()}
        self.counted, has_to_load = {}, self.has_to_load
        for name, place in places.items():
            loader = flattened[place]
            each = known.get(id(loader))
            if each is None and self.has_to_load and name in before:
                # Lightning has built new loaders after a load into the old ones.
                each = Counted(loader, before[name].start)
            elif each is None:
                state = loader.state_dict(batches_ago=prefetched) if prefetched else None
                each = Counted(loader, None if state is None else Record(state=state))
                if self._has_run:
                    # Continue with the trainer's epoch, as the loaders before them would.
                    each.number_passes_from(self.epoch)
                    has_to_load = True
            has_limit = is_sequential and combined.limits is not None
            each.limit = combined.limits[place] if has_limit else float("inf")
            flattened[place] = self.counted[name] = each
        self.has_to_load = has_to_load
        self._combined = copy.copy(combined)
        self._combined.flattened = flattened
        if fetcher is not None:
            self._go_on(places, prefetched)
        return True

    def _go_on(self, places: dict[str, int], prefetched: int) -> None:
        """Take over the iterators of Lightning's CombinedLoader and their fetched batches."""
        mode = self._combined._iterator
        mode.iterables = self._combined.flattened
        for name, place in places.items():
            each = self.counted[name]
            if self._combined._mode != "sequential":
                is_moved = bool(prefetched) and each.loader.batches_done != 0
                each.go_on_with(mode.iterators[place], int(is_moved))
                mode.iterators[place] = each
            elif place == mode._iterator_idx:
                each.go_on_with(mode.iterators[0], mode._idx)
                mode.iterators[0] = each
        self._fetched = prefetched
        self._marks.extend([[0] * len(places)] * prefetched)

    def follow(self) -> None:
        """Let Lightning's data fetcher fetch from this stage, from the start of the run."""
        self._fetcher.setup(self)
        if self.has_to_load:
            iter(self._fetcher)
        else:
            self._fetcher.iterator = self

    def __iter__(self) -> Stage:
        self.end_run()
        iter(self._combined)
        return self

    def __next__(self) -> Any:
        if self._num_attempts == 0 and self.has_to_load:
            for each in self.counted.values():
                each.load(self.epoch)
        if self._num_attempts == 1:
            for each in self.counted.values():
                each.skip_epoch_in_progress()
        self._marks.append([each.delivered for each in self.counted.values()])
        try:
            batch, index, place = next(self._combined)
        except StopIteration:
            self._is_exhausted = True
            raise
        self._fetched += 1
        if self._combined._mode != "sequential":
            return batch, index + self._resumed_at, place
        start = getattr(self._combined.flattened[place], "start", None)
        return batch, index + (start.batches if isinstance(start, Record) else 0), place

    def __len__(self) -> int:
        return len(self._combined)

    def reset(self) -> None:
        """Same as :meth:`CombinedLoader.reset`: release iterators and waiting workers."""
        self._combined.reset()
        self._original.reset()
        for each in self.counted.values():
            each.release()

    @property
    def _num_attempts(self) -> int:
        return self._fetched + self._is_exhausted

    @property
    def _has_begun(self) -> bool:
        """Whether a batch of this run is, or was, in use."""
        return self._processed_before is not None

    def begin_batch(self, trainer: Any) -> None:
        """Note that a batch is about to be used, so that the run cannot begin again."""
        if self._processed_before is None:
            self._processed_before = self._progress.current.processed
            self.epoch = int(trainer.current_epoch)
            self.has_to_load, self._has_run = False, True

    def end_run(self) -> None:
        """Start the next run where this one has left the loaders.

        If none of its fetched batches was used, the run will begin again.
        """
        is_empty = self._is_exhausted and not self._fetched
        if self._has_begun or is_empty:
            for each in self.counted.values():
                each.begin_run(each.record(each.delivered, is_over=True))
            self.epoch, self._resumed_at, self.has_to_load = self.epoch + 1, 0, False
        else:
            for each in self.counted.values():
                each.begin_again()
            self.has_to_load = self.has_to_load or bool(self._fetched)
        self._clear()

    def give_up(self) -> None:
        """Start the next run from the beginning, instead of continuing an interrupted one."""
        if self.saved is not None:
            records = {name: record.given_up() for name, record in self.saved.records.items()}
            self.saved = replace(self.saved, records=records, batches=0)
        elif not self._has_begun:
            for each in self.counted.values():
                each.start = each.start.given_up()
            self._resumed_at = 0

    @property
    def is_over(self) -> bool:
        """Whether all batches of the run were used."""
        # A loader may end before Lightning sets is_last_batch.
        has_ended = self._is_exhausted or (self._has_begun and self._progress.is_last_batch)
        in_hand = self._fetched - len(getattr(self._fetcher, "batches", ())) - self._num_used
        return bool(has_ended and in_hand <= 0)

    @property
    def _num_used(self) -> int:
        """Number of used batches of this run since it began or was resumed."""
        before = self._processed_before
        return 0 if before is None else int(self._progress.current.processed) - before

    def place(self) -> Place | None:
        """Return the places of the loaders after the last used batch; a collective call.

        Batches fetched beyond the end of a run are lost.
        """
        if self.saved is not None or self._combined is None:
            return self.saved
        is_over, used = self.is_over, self._num_used
        marks = [each.delivered for each in self.counted.values()]
        if used < self._num_attempts and not is_over:
            marks = self._marks[used - self._num_attempts]
        records = {}
        for (name, each), mark in zip(self.counted.items(), marks, strict=True):
            record = each.record(mark, is_over=is_over)
            records[name] = record.with_state(state_for_all_ranks(each.loader, record.state))
        return Place(
            records=records,
            epoch=self.epoch + is_over,
            batches=0 if is_over else self._resumed_at + used,
            is_over=is_over,
        )

    def _load_saved(self, name: str, record: Record) -> Record:
        try:
            return self.counted[name].check(record, self.epoch)
        except StateMismatch as error:
            raise StateMismatch(
                f"{error.field} of the {self.name} loader {name!r}",
                saved=error.saved,
                present=error.present,
                remedy=error.remedy,
            ) from None


def load(stages: Iterable[Stage]) -> None:
    """Move the known loaders to the places in a checkpoint.

    Args:
        stages: stages that resume from the same checkpoint.

    Raises:
        StateMismatch: a state does not fit; every loader is unchanged.
    """
    found = [(stage, stage.saved) for stage in stages if stage.counted and stage.saved is not None]
    for stage, saved in found:
        check_names(stage.name, saved.records, stage.counted)
    records = load_all(
        (each.loader, partial(stage._load_saved, name, saved.records[name]))
        for stage, saved in found
        for name, each in stage.counted.items()
    )
    local = iter(records)
    for stage, saved in found:
        for each in stage.counted.values():
            each.start = next(local)
        stage._resumed_at, stage.has_to_load, stage.saved = saved.batches, True, None


def _places_of(combined: Any) -> dict[str, int]:
    """Return, by the path of keys to each StatefulGPULoader, its index among all loaders.

    A single loader is named like the only one in a list.
    """
    names = {id(loader): path for path, loader in _leaves(combined.iterables, "")}
    places: dict[str, int] = {}
    for place, loader in enumerate(combined.flattened):
        if isinstance(loader, StatefulGPULoader):
            name = names.get(id(loader)) or str(place)
            places[name if name not in places else f"{name} at {place}"] = place
    return places


def _leaves(iterables: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(iterables, StatefulGPULoader):
        yield path, iterables
        return
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(iterables, Mapping):
        items = iterables.items()
    elif isinstance(iterables, (list, tuple)):
        items = enumerate(iterables)
    for key, value in items:
        yield from _leaves(value, f"{path}/{key}".lstrip("/"))


class Counted(Iterator[Any]):
    """Replaces a loader in Lightning's CombinedLoader and counts the fetched batches.

    During a run Lightning may begin several passes over the loader (it cycles the shorter of two),
    or leave a pass early (because of a limit, or because another loader has ended).

    Args:
        loader: the StatefulGPULoader.
        start: start of its first run; None is the loader's present place.
    """

    def __init__(self, loader: StatefulGPULoader[Any], start: Record | None) -> None:
        self.loader = loader
        self.limit: float = float("inf")
        """Number of batches of a pass after which Lightning fetches no more."""
        self._takes_trainers_epoch = isinstance(loader.sampler, OWN_SAMPLERS)
        self._batches: Iterator[Any] = iter(())
        self._may_be_empty = False
        self.begin_run(start)

    def begin_run(self, start: Record | None) -> None:
        """Reset the counts; ``start`` is the place of the run's first batch."""
        self._start = start
        self.begin_again()

    def begin_again(self) -> None:
        """Reset the counts to the start of the present run."""
        self.delivered = 0
        self._ends: list[int] = []
        """Number of delivered batches at each end of a pass in this run."""

    @property
    def start(self) -> Record:
        """Place of the run's first batch.

        The loader's state is requested just before its first batch, because the request settles an
        undecided seed.
        """
        if self._start is None:
            self._start = Record(state=self.loader.state_dict())
        return self._start

    @start.setter
    def start(self, start: Record) -> None:
        self._start = start

    def go_on_with(self, batches: Iterator[Any], delivered: int) -> None:
        """Take over an iterator that has already delivered batches."""
        self._batches, self.delivered = batches, delivered

    def __iter__(self) -> Counted:
        if self.start.ended and not self._ends:
            # The loader ended before the resume, and Lightning must see this again.
            self._batches = iter(())
        else:
            # After the last batch of a repeated pass, Lightning expects a batch.
            self._may_be_empty = self.start.ended and not self.delivered
            self._batches = iter(self.loader)
        return self

    def __next__(self) -> Any:
        # This also requests the start, before the first batch.
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
        """Release the iterator and the loader's workers."""
        self._batches = iter(())

    def record(self, delivered: int, *, is_over: bool) -> Record:
        """Return the loader's place after the first ``delivered`` batches of this run.

        Args:
            delivered: number of used batches among the fetched ones.
            is_over: whether the run is over, so that the next batch begins a new pass.
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
        """Load a record from a checkpoint.

        Returns:
            The record with only this rank's state.

        Raises:
            StateMismatch: the state does not fit this loader; nothing was changed.
        """
        state = record.state
        if record.is_at_start and self._takes_trainers_epoch:
            state = in_epoch(state, epoch)
        load_own_state(self.loader, state)
        return record.with_state(self.loader.state_dict())

    def load(self, epoch: int) -> None:
        """Move the loader to the start of the run.

        Args:
            epoch: the trainer's epoch, which samplers of this package follow.
        """
        self.check(self.start, epoch)
        if self.start.replay:
            for _ in self.loader:
                break
        if self.start.replay and self._takes_trainers_epoch:
            self.loader.set_epoch(epoch)
        elif self.start.replay or self.start.is_at_start:
            self._set_sampler_epoch(epoch)

    def number_passes_from(self, epoch: int) -> None:
        """Let a loader that replaces another begin with this epoch."""
        if not self._takes_trainers_epoch:
            self.start = self.start.with_state(in_epoch(self.start.state, epoch))

    def skip_epoch_in_progress(self) -> None:
        """Set the next epoch for the next pass, although Lightning has just set the present one.

        Lightning fetches the first batch of a fit before it sets the sampler's epoch.
        """
        if self._takes_trainers_epoch and self._used(self.delivered):
            self.loader.set_epoch(self.loader.state_dict()["epoch"] + 1)

    def _set_sampler_epoch(self, epoch: int) -> None:
        """Set the epoch of the user's sampler, as Lightning did before the state was loaded."""
        batch_sampler = getattr(self.loader, "batch_sampler", None)
        samplers = [self.loader.sampler, getattr(batch_sampler, "sampler", None)]
        for sampler in {id(sampler): sampler for sampler in samplers}.values():
            if not self._takes_trainers_epoch and hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)

    def _used(self, delivered: int) -> int:
        """Return the number of its pass's batches up to a batch, counted from 1."""
        ends = self._ends_until(delivered)
        if len(ends) == self.start.ended:
            return self.start.batches + delivered
        return delivered - (ends[-1] if ends else 0)

    def _ends_until(self, delivered: int) -> list[int]:
        return [end for end in self._ends if end <= delivered]

    def _after_left_pass(self, ago: int, *, ended: bool) -> Record:
        """Return the start of the next pass if the present one is left before its end."""
        state = self.loader.state_dict(batches_ago=ago)
        if state.get("user", 0) is not None or any(key.startswith("lane_") for key in state):
            # Only leaving the pass shows the state of the user's dataset or sampler.
            before = self.loader.state_dict(batches_ago=ago + 1)
            return Record(state=before, ended=ended, replay=True)
        start = {"epoch": state["epoch"] + 1, "position": 0, "ahead": None, "index_digest": None}
        return Record(state={**state, **start}, ended=ended)


def in_epoch(state: dict[str, Any], epoch: int) -> dict[str, Any]:
    """Return a state between two passes with another epoch, or such states of each rank."""
    if "epoch" in state:
        return {**state, "epoch": epoch}
    return {
        key: in_epoch(value, epoch) if isinstance(value, dict) else value
        for key, value in state.items()
    }
