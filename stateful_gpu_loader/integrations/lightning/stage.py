"""The loaders of training, or those of validation, from one checkpoint to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.integrations.lightning.counted import in_epoch
from stateful_gpu_loader.integrations.lightning.records import Record, check_names
from stateful_gpu_loader.integrations.lightning.watch import Watch
from stateful_gpu_loader.samplers import OWN_SAMPLERS


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the loaders of a stage stand."""

    records: Mapping[str, Record]
    epoch: int
    """Of the trainer, to which the next batches belong."""
    batches: int
    """Of that epoch, or of a validation run under way, that were used."""
    is_over: bool = False
    """Whether that epoch, or run, begins with the next batch."""


class Stage:
    """What is known of one of Lightning's loops over loaders.

    Args:
        name: ``"train"`` or ``"val"``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.watch: Watch | None = None
        self.pending: Place | None = None
        """Where the next batch comes from, until one is used."""
        self.has_to_move = False
        """Whether the pending records are of another place than the loaders are at."""

    def look_at(self, combined: Any, fetcher: Any, epoch: Callable[[], int]) -> None:
        """Watch these loaders from now on.

        Args:
            combined: Lightning's CombinedLoader.
            fetcher: Lightning's, which may have fetched ahead from it; None before it does.
            epoch: the trainer's, when it is called.
        """
        self.drop_spent()
        self.watch = Watch(combined, self.watch, epoch)
        self.has_to_move = False
        if fetcher is not None:
            self.watch.adopt(combined, len(getattr(fetcher, "batches", ())))

    def number_on(self) -> None:
        """Loaders that were built anew begin in the trainer's epoch, not in their first."""
        watch = self.watch
        if watch is None or watch.knows_all or self.pending is not None:
            return
        records = watch.records(0, is_over=False)
        for name, each in zip(watch.places, watch.counted, strict=True):
            if not isinstance(each.loader.sampler, OWN_SAMPLERS):
                records[name] = Record(state=in_epoch(records[name].state, watch.epoch))
        self.pending = Place(records=records, epoch=watch.epoch, batches=0)

    def follow(self, fetcher: Any) -> None:
        """Let the data fetcher fetch through the watch, from where the pending records say."""
        watch = self.watch
        if watch is None:
            return
        fetcher.setup(watch)
        if self.pending is None or not self.has_to_move:
            fetcher.iterator = watch
            if watch.fetched:
                # A second fit of a trainer begins its iterators again; what the first ones have
                # fetched ahead comes again.
                watch.resume(watch.records(0, is_over=False), 0)
        else:
            watch.resume(self.pending.records, self.pending.batches)
            iter(fetcher)

    def begin_batch(self, processed: int) -> None:
        """A batch is about to be used: from now on the loaders say where they are."""
        if self.watch is not None:
            self.watch.begin_batch(processed)
        self.pending = None

    def drop_spent(self) -> None:
        """A pending run of which nothing was left has been gone through."""
        if self.watch is not None and self.watch.gave_nothing:
            self.pending = None

    def give_up(self) -> None:
        """The pending run will not go on: its loaders begin their next pass."""
        if self.pending is not None:
            records = {name: _next(record) for name, record in self.pending.records.items()}
            self.pending = replace(self.pending, records=records, batches=0)

    def place(self, progress: Any, fetcher: Any, *, is_running: bool = True) -> Place | None:
        """Where the loaders stand behind the last batch that was used.

        Args:
            progress: Lightning's, of the batches of this loop.
            fetcher: the loop's; None once the loop is torn down.
            is_running: whether the loop's last run may be under way.
        """
        self.drop_spent()
        watch = self.watch
        if self.pending is not None or watch is None:
            return self.pending
        used = watch.used(progress.current.processed)
        in_hand = watch.fetched - len(getattr(fetcher, "batches", ())) - used
        # A loader may end before Lightning expects it to: is_last_batch was not set then.
        has_ended = watch.is_exhausted or (watch.has_begun and progress.is_last_batch)
        is_over = (has_ended and in_hand <= 0) or (watch.has_begun and not is_running)
        return Place(
            records=watch.records(used, is_over=is_over),
            epoch=watch.epoch + is_over,
            batches=0 if is_over else watch.index_before + used,
            is_over=is_over,
        )


def _next(record: Record) -> Record:
    if record.batches:
        return Record(state=record.state, replay=True)
    return replace(record, ended=False)


def check(stages: Iterable[Stage], epoch: int) -> None:
    """Put the loaders that are watched where the pending records say.

    Args:
        epoch: of the trainer.

    Raises:
        StateMismatch: the records do not fit them; every loader is as it was.
    """
    watched = [
        (stage, stage.watch, stage.pending.records)
        for stage in stages
        if stage.watch is not None and stage.pending is not None
    ]
    for stage, watch, records in watched:
        check_names(stage.name, records, watch.places)
    before: list[tuple[Any, dict[str, Any]]] = []
    for stage, watch, records in watched:
        stage.has_to_move = records != watch.records(0, is_over=False)
        if not stage.has_to_move:
            continue
        for name, each in zip(watch.places, watch.counted, strict=True):
            state = each.loader.state_dict()
            try:
                each.check(records[name], epoch)
            except StateMismatch as error:
                for loader, earlier in before:
                    loader.load_state_dict(earlier)
                raise StateMismatch(
                    f"{error.field} of the {stage.name} loader {name!r}",
                    saved=error.saved,
                    present=error.present,
                    remedy=error.remedy,
                ) from None
            before.append((each.loader, state))
