"""What the callback writes into a checkpoint: the loaders' states, and counters that agree.

Lightning resumes by counters: which epoch, which batch of it, whether a validation was under way.
In some hooks it saves counters of which only some are increased already. They are corrected where
they contradict the loaders' states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stateful_gpu_loader.errors import StateMismatch

FORMAT = "stateful_gpu_loader.lightning"
VERSION = 1
NONE, DUE, DONE = "none", "due", "done"
_REMEDY_FOREIGN = "resume from a checkpoint that LoaderStateCallback wrote, unchanged"
_REMEDY_SAME = "give the trainer the loaders that the checkpoint was saved with, in the same places"


@dataclass(frozen=True, kw_only=True)
class Record:
    """Where one loader stands in a run: a training epoch, or a validation."""

    state: dict[str, Any]
    """After the last batch that was used; of this rank's loader, or of those of all ranks."""
    batches: int = 0
    """Used batches of the pass under way; 0 between two passes."""
    ended: bool = False
    """Whether the loader has come to its end in this run; it may have begun again since."""
    replay: bool = False
    """Whether the loader left its last pass before the pass's end. The state is then that before
    the pass's last batch: to resume, take one batch, drop it, and begin the next pass. So the
    user's own objects hold what they held."""

    @property
    def is_at_start(self) -> bool:
        """Whether the run has used nothing of the loader."""
        return not (self.batches or self.ended or self.replay)

    def with_state(self, state: dict[str, Any]) -> Record:
        """The same place, by another state."""
        return replace(self, state=state)

    def given_up(self) -> Record:
        """Where the next run begins, if this one does not go on."""
        if self.batches:
            return Record(state=self.state, replay=True)
        return replace(self, ended=False)


@dataclass(frozen=True, kw_only=True)
class Saved:
    """Where all loaders of a trainer stand."""

    epoch: int
    """The trainer's epoch to which the next training batch belongs."""
    batches: int
    """Used training batches of that epoch."""
    validated: int
    """Used batches of the validation under way; 0 if there is none."""
    validation: str = NONE
    """``"due"``: a validation, or its rest, comes next; ``"done"``: its last batch was used."""
    train: Mapping[str, Record] = field(default_factory=dict)
    val: Mapping[str, Record] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, because trainers load checkpoints with ``weights_only=True``."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "epoch": self.epoch,
            "batches": self.batches,
            "validated": self.validated,
            "validation": self.validation,
            "train": {name: dict(vars(record)) for name, record in self.train.items()},
            "val": {name: dict(vars(record)) for name, record in self.val.items()},
        }

    @classmethod
    def from_dict(cls, saved: Any) -> Saved:
        """Read back :meth:`to_dict`.

        Raises:
            StateMismatch: ``saved`` is no such dictionary.

        >>> saved = Saved(epoch=1, batches=0, validated=0, train={"0": Record(state={})})
        >>> Saved.from_dict(saved.to_dict()) == saved
        True
        """
        wanted = cls(epoch=0, batches=0, validated=0).to_dict()
        _check("the callback's state", saved, wanted)
        for key in ("format", "version"):
            if saved[key] != wanted[key]:
                raise _foreign(key, saved[key], wanted[key])
        return cls(
            epoch=saved["epoch"],
            batches=saved["batches"],
            validated=saved["validated"],
            validation=saved["validation"],
            train=_records("train", saved["train"]),
            val=_records("val", saved["val"]),
        )


def check_names(stage: str, saved: Mapping[str, Record], present: Mapping[str, Any]) -> None:
    """Check that these are the loaders that the checkpoint was saved with.

    Raises:
        StateMismatch: there are more or fewer loaders, or they have other names.
    """
    if len(saved) != len(present):
        raise StateMismatch(
            f"number of {stage} loaders",
            saved=f"{len(saved)}: {sorted(saved)}",
            present=f"{len(present)}: {sorted(present)}",
            remedy=_REMEDY_SAME,
        )
    if set(saved) != set(present):
        raise StateMismatch(
            f"names of the {stage} loaders",
            saved=sorted(saved),
            present=sorted(present),
            remedy=_REMEDY_SAME,
        )


def _records(stage: str, saved: Mapping[Any, Any]) -> dict[str, Record]:
    records = {}
    for name, fields in saved.items():
        _check(f"{stage} loader {name!r}", fields, vars(Record(state={})))
        records[str(name)] = Record(**fields)
    return records


def _check(name: str, value: Any, like: Mapping[str, Any]) -> None:
    if not isinstance(value, Mapping) or set(value) != set(like):
        keys = sorted(map(str, value)) if isinstance(value, Mapping) else value
        raise _foreign(name, keys, f"a dict of {sorted(like)}")
    for key, example in like.items():
        kind, found = type(example), value[key]
        if type(found) is not kind or (kind is int and found < 0):
            raise _foreign(f"{name}'s {key}", found, f"a {kind.__name__}, not negative")


def _foreign(field_name: str, saved: Any, present: Any) -> StateMismatch:
    return StateMismatch(field_name, saved=saved, present=present, remedy=_REMEDY_FOREIGN)


_EPOCH, _BATCH = "epoch_progress", "epoch_loop.batch_progress"
_VAL = "epoch_loop.val_loop.batch_progress"


def correct_counters(loops: dict[str, Any], saved: Saved) -> None:
    """Make the counters of the fit loop agree with the loaders' states.

    - The fit was stopped in the middle of an epoch (``max_steps``, ``max_time``, early stopping):
      Lightning counts the epoch as done. Corrected, the resumed fit finishes it.
    - At the end of an epoch: in some cases Lightning goes on counting batches of that epoch.
      Corrected, the next epoch begins with its first batch, once the validation is done.
    - Before a validation, or between two of its batches: Lightning skips the rest of the
      validation. Corrected, the resumed fit finishes it.
    """
    epoch, batch = loops[_EPOCH], loops[_BATCH]
    if saved.validation == DUE:
        for counts in (batch["current"], batch["total"]):
            counts["completed"] = counts["processed"]
        _validate_on(loops[_VAL], saved.validated)
        return
    if saved.batches:
        if epoch["current"]["processed"] > saved.epoch:
            _set(epoch, ready=saved.epoch + 1, processed=saved.epoch)
        return
    if saved.validation == DONE and epoch["current"]["processed"] < saved.epoch:
        return
    _set(epoch, ready=saved.epoch, processed=saved.epoch)
    total = batch["total"]
    total["started"] = total["ready"] = total["completed"] = total["processed"]
    batch["current"] = dict.fromkeys(batch["current"], 0)
    batch["is_last_batch"] = False


def _set(progress: dict[str, Any], *, ready: int, processed: int) -> None:
    """Set the epochs begun and done in this fit; keep what earlier fits added to the total."""
    current, total = progress["current"], progress["total"]
    earlier = total["processed"] - current["processed"]
    for counts, offset in ((current, 0), (total, earlier)):
        counts["ready"] = counts["started"] = ready + offset
        counts["processed"] = counts["completed"] = processed + offset


def _validate_on(progress: dict[str, Any], validated: int) -> None:
    """Set the counters as an exception in the next validation step would leave them."""
    earlier = progress["total"]["processed"] - progress["current"]["processed"]
    for counts, done in (
        (progress["current"], validated),
        (progress["total"], validated + earlier),
    ):
        counts["ready"] = counts["started"] = done + 1
        counts["processed"] = counts["completed"] = done
    progress["is_last_batch"] = False
