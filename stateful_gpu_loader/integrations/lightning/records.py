"""The callback's part of a checkpoint: the loaders' states, and consistent counters.

Lightning resumes by counters: epoch, batch in the epoch, validation in progress. In some hooks only
some are increased already. They are corrected if they contradict the loaders' states.
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
    """Place of one loader in a run, which is a training epoch or a validation."""

    state: dict[str, Any]
    """State after the last used batch, of this rank's loader or of all ranks'."""
    batches: int = 0
    """Number of used batches of the pass in progress; 0 between two passes."""
    ended: bool = False
    """Whether the loader has reached its end in this run."""
    replay: bool = False
    """Whether the loader left its last pass early. The state is then the one before the pass's last
    batch. To resume, drop one batch and begin the next pass, which brings the user's objects to the
    same state."""

    @property
    def is_at_start(self) -> bool:
        """Whether the run has used no batch of the loader."""
        return not (self.batches or self.ended or self.replay)

    def with_state(self, state: dict[str, Any]) -> Record:
        """Return the same place with another state."""
        return replace(self, state=state)

    def given_up(self) -> Record:
        """Return the start of the next run if this run is not continued."""
        if self.batches:
            return Record(state=self.state, replay=True)
        return replace(self, ended=False)


@dataclass(frozen=True, kw_only=True)
class Saved:
    """Places of all loaders of a trainer."""

    epoch: int
    """The trainer's epoch of the next training batch."""
    batches: int
    """Number of used training batches of that epoch."""
    validated: int
    """Number of used batches of the validation in progress; 0 if there is none."""
    validation: str = NONE
    """``"due"``: a validation, or its rest, comes next; ``"done"``: its last batch was used."""
    train: Mapping[str, Record] = field(default_factory=dict)
    val: Mapping[str, Record] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values only, for ``weights_only=True``."""
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
            StateMismatch: ``saved`` is not such a dictionary.

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
    """Check that the loaders are those of the checkpoint.

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
    """Correct the counters of the fit loop so that they agree with the loaders' states.

    - The fit was stopped within an epoch (``max_steps``, ``max_time``, early stopping): Lightning
      counts the epoch as done. After the correction, the resumed fit finishes it.
    - The fit ended with an epoch: in some cases Lightning continues to count batches of that epoch.
      After the correction, the next epoch begins with its first batch, after the validation.
    - The fit was stopped before or within a validation: Lightning skips the rest of the
      validation. After the correction, the resumed fit finishes it.
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
    """Set the epochs begun and done in this fit."""
    current, total = progress["current"], progress["total"]
    earlier = total["processed"] - current["processed"]
    for counts, offset in ((current, 0), (total, earlier)):
        counts["ready"] = counts["started"] = ready + offset
        counts["processed"] = counts["completed"] = processed + offset


def _validate_on(progress: dict[str, Any], validated: int) -> None:
    """Set the counters as after an exception in the next validation step."""
    earlier = progress["total"]["processed"] - progress["current"]["processed"]
    for counts, done in (
        (progress["current"], validated),
        (progress["total"], validated + earlier),
    ):
        counts["ready"] = counts["started"] = done + 1
        counts["processed"] = counts["completed"] = done
    progress["is_last_batch"] = False
