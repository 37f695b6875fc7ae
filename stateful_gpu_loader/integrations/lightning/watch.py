"""A CombinedLoader as the data fetcher sees it: it knows what each loader had given when."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stateful_gpu_loader.integrations.lightning.counted import Counted
from stateful_gpu_loader.integrations.lightning.records import Record
from stateful_gpu_loader.loader import StatefulGPULoader
from stateful_gpu_loader.state.epoch_progress import HISTORY


class Watch(Iterator[Any]):
    """Counts the fetches of an epoch. Lightning's own CombinedLoader stays as it is.

    Args:
        combined: Lightning's CombinedLoader.
        before: the watch of the same stage until now.
        epoch: the trainer's, when it is called.
    """

    def __init__(self, combined: Any, before: Watch | None, epoch: Callable[[], int]) -> None:
        known = {} if before is None else {id(each.loader): each for each in before.counted}
        self._epoch_now = epoch
        self._is_sequential = combined._mode == "sequential"
        self.places = places_of(combined)
        """Of each loader of ours its name, and where it stands among all."""
        flattened = list(combined.flattened)
        limits = combined.limits if self._is_sequential else None
        for place in self.places.values():
            loader = flattened[place]
            flattened[place] = Counted(
                loader,
                limit=float("inf") if limits is None else limits[place],
                before=known.get(id(loader)),
            )
        self.counted: list[Counted] = [flattened[place] for place in self.places.values()]
        self.knows_all = before is None or all(id(each.loader) in known for each in self.counted)
        """Whether the stage has had these loaders before, or none."""
        self._combined = copy.copy(combined)
        self._combined.flattened = flattened
        self._pending: Mapping[str, Record] | None = None
        self.index_before = 0
        """Batches of this epoch that were used before it was resumed."""
        self._restart()

    def _restart(self) -> None:
        self.fetched = 0
        """Batches, each of all loaders together, that were fetched in this epoch."""
        self._attempts = 0
        self._marks: deque[list[int]] = deque(maxlen=HISTORY)
        self._begun_at: int | None = None
        self._epoch = 0
        self._is_new = True
        self.is_exhausted = False
        """Whether the loaders have said in this epoch that nothing more comes."""

    def __iter__(self) -> Watch:
        if self.gave_nothing:
            # The epoch was saved at its very end, which nobody knew then; this is the next one.
            self._pending = None
        self._restart()
        pending = self._pending
        if pending is None:
            self.index_before = 0
        for name, each in zip(self.places, self.counted, strict=True):
            each.restart(None if pending is None else pending[name])
        iter(self._combined)
        return self

    def __next__(self) -> Any:
        pending = self._pending
        for name, each in zip(self.places, self.counted, strict=True):
            if pending is not None and not self._attempts:
                each.load(pending[name], self._epoch_now())
            elif self._is_new:
                each.begin_epoch(self._epoch_now())
            if self._attempts == 1:
                each.keep_epoch()
        self._is_new = False
        self._marks.append([each.delivered for each in self.counted])
        self._attempts += 1
        try:
            batch, index, place = next(self._combined)
        except StopIteration:
            self.is_exhausted = True
            if not self.has_begun:
                self._epoch = self._epoch_now()
            raise
        self.fetched += 1
        return batch, index + self._resumed_index(place), place

    def __len__(self) -> int:
        return len(self._combined)

    def reset(self) -> None:
        """As CombinedLoader's: the iterators are given up, and workers that were kept."""
        self._combined.reset()
        for each in self.counted:
            each.loader._iterator = None

    def adopt(self, combined: Any, prefetched: int) -> None:
        """Go on with the iterators of ``combined``, of which so much was fetched."""
        mode = combined._iterator
        mode.iterables = self._combined.flattened
        for place, each in zip(self.places.values(), self.counted, strict=True):
            if not self._is_sequential:
                state = each.loader.state_dict() if prefetched else {}
                moved = bool(state.get("position") or state.get("ahead"))
                mode.iterators[place] = each.adopt(mode.iterators[place], int(moved))
            elif place == mode._iterator_idx:
                mode.iterators[0] = each.adopt(mode.iterators[0], mode._idx)
        self._combined._iterator = mode
        self.fetched = self._attempts = prefetched
        self._marks.extend([[0] * len(self.counted)] * prefetched)

    def resume(self, pending: Mapping[str, Record], index: int) -> None:
        """Let the next iterators begin where the records say, until a batch of them is used.

        Args:
            index: of the first batch in its epoch.
        """
        self._pending, self.index_before = pending, index

    def begin_batch(self, processed: int) -> None:
        """A batch is about to be used.

        Args:
            processed: Lightning's count of the batches that were.
        """
        if self._begun_at is None:
            self._begun_at, self._epoch, self._pending = processed, self._epoch_now(), None

    @property
    def has_begun(self) -> bool:
        """Whether a batch of this epoch was used, or is in use."""
        return self._begun_at is not None

    @property
    def gave_nothing(self) -> bool:
        """Whether this epoch, or what was left of it, was over at the first fetch."""
        return self.is_exhausted and not self.fetched

    @property
    def epoch(self) -> int:
        """The trainer's epoch whose batches these are."""
        return self._epoch if self.has_begun or self.gave_nothing else self._epoch_now()

    def used(self, processed: int) -> int:
        """Batches that were used, by Lightning's count, since these iterators began."""
        return 0 if self._begun_at is None else processed - self._begun_at

    def records(self, used: int, *, is_over: bool) -> dict[str, Record]:
        """Where the loaders stood when so many of these batches were used.

        Args:
            is_over: whether the epoch is; what was fetched beyond it is lost then, as it is
                without a checkpoint.
        """
        marks = [each.delivered for each in self.counted]
        if used < self._attempts and not is_over:
            marks = self._marks[used - (self._attempts - len(self._marks))]
        return {
            name: each.record(mark, is_over=is_over)
            for name, each, mark in zip(self.places, self.counted, marks, strict=True)
        }

    def _resumed_index(self, place: int) -> int:
        if not self._is_sequential:
            return self.index_before
        counted = self._combined.flattened[place]
        return counted.index_before if isinstance(counted, Counted) else 0


def places_of(combined: Any) -> dict[str, int]:
    """Of each StatefulGPULoader its name, the path of keys to it, and its place among all.

    A loader alone is named as the only one of a list.
    """
    flattened = combined.flattened
    names = {id(loader): path for path, loader in _leaves(combined.iterables, "")}
    places: dict[str, int] = {}
    for place, loader in enumerate(flattened):
        if isinstance(loader, StatefulGPULoader):
            name = names.get(id(loader)) or str(place)
            places[name if name not in places else f"{name} at {place}"] = place
    return places


def _leaves(iterables: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(iterables, StatefulGPULoader):
        yield path, iterables
    elif isinstance(iterables, Mapping):
        for key, value in iterables.items():
            yield from _leaves(value, f"{path}/{key}".lstrip("/"))
    elif isinstance(iterables, (list, tuple)):
        for number, value in enumerate(iterables):
            yield from _leaves(value, f"{path}/{number}".lstrip("/"))
