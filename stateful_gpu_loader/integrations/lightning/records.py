"""What the callback writes into a checkpoint: for each loader its state, and how it was used."""

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
