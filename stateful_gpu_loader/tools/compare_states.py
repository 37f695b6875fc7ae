"""Says how two states differ, and whether a loader of the one resumes from the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stateful_gpu_loader.engine.resume.rank_states import comparable
from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.state.schema import COMPARED, FORMAT, Fingerprint, LoaderState
from stateful_gpu_loader.tools.describe_state import describe_state

_INFORMATION = ("decoder_version",)


@dataclass(frozen=True, kw_only=True)
class FieldDifference:
    """A field of two states that is not the same."""

    field: str
    first: Any
    second: Any
    is_refused: bool
    """Whether a loader that is described by the one refuses the other state for it."""


@dataclass(frozen=True, kw_only=True)
class StateComparison:
    """What lies between two states of a loader."""

    differences: tuple[FieldDifference, ...]
    samples_between: int | None
    """Samples that were delivered from the first state to the second, negative if the second is
    the earlier one; None where the states do not tell."""
    steps_between: int | None
    """The same in steps of all ranks; None where the states do not tell."""

    @property
    def is_same(self) -> bool:
        """Whether both resume the same stream at the same place."""
        return not self.differences

    @property
    def refused(self) -> tuple[str, ...]:
        """Fields for which a loader of the one state refuses the other."""
        return tuple(one.field for one in self.differences if one.is_refused)

    @property
    def resumes(self) -> bool:
        """Whether a loader of the one state resumes from the other."""
        return not self.refused


def compare_states(first: Mapping[str, Any], second: Mapping[str, Any]) -> StateComparison:
    """Compare two states field by field.

    Raises:
        StateMismatch: one of them is damaged, or of a later version.
        LoaderError: one of them is torchdata's, which does not say what loader it is of.

    >>> from stateful_gpu_loader import StatefulGPULoader
    >>> loader = StatefulGPULoader(range(100), batch_size=4, seed=7)
    >>> batches, before = iter(loader), loader.state_dict()
    >>> _ = next(batches), next(batches)
    >>> found = compare_states(before, loader.state_dict())
    >>> [one.field for one in found.differences], found.resumes, found.steps_between
    (['position'], True, 2)
    """
    for state in (first, second):
        if state.get("format") != FORMAT:
            raise LoaderError(
                "a state of torchdata's StatefulDataLoader does not say which loader it is of, so "
                "it is compared with nothing. Remedy: load it into a StatefulGPULoader, and take "
                "that one's state_dict()"
            )
    one, other = LoaderState.from_dict(first), LoaderState.from_dict(second)
    prints = Fingerprint.from_text(one.fingerprint), Fingerprint.from_text(other.fingerprint)
    differences = [
        FieldDifference(field=name, first=mine, second=theirs, is_refused=name == "seed")
        for name in ("seed", "epoch", "position", "global_batch_size", "index_digest", "ahead")
        if (mine := getattr(one, name)) != (theirs := getattr(other, name))
    ]
    for name in (*COMPARED, *_INFORMATION):
        mine, theirs = (getattr(each, name) for each in prints)
        if mine != theirs:
            refused = name in COMPARED and None not in (mine, theirs)
            differences.append(
                FieldDifference(field=name, first=mine, second=theirs, is_refused=refused)
            )
    for name in ("bad_samples", "lanes", "user"):
        mine, theirs = getattr(one, name), getattr(other, name)
        if comparable(mine) != comparable(theirs):
            differences.append(
                FieldDifference(field=name, first=mine, second=theirs, is_refused=False)
            )
    samples, steps = _between(first, second)
    return StateComparison(
        differences=tuple(differences), samples_between=samples, steps_between=steps
    )


def _between(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[int | None, int | None]:
    before, after = describe_state(first), describe_state(second)
    if before.unit != after.unit:
        return None, None
    is_one_epoch = before.epoch == after.epoch
    if not before.unit.startswith("samples"):
        return None, after.position - before.position if is_one_epoch else None
    if is_one_epoch:
        samples = after.position - before.position
    elif None not in (before.samples_seen, after.samples_seen) and (
        before.epoch_length == after.epoch_length
    ):
        samples = (after.samples_seen or 0) - (before.samples_seen or 0)
    else:
        return None, None
    size = before.global_batch_size
    if not is_one_epoch or size is None or size != after.global_batch_size:
        return samples, None
    steps = -(-abs(samples) // size)
    return samples, steps if samples >= 0 else -steps
