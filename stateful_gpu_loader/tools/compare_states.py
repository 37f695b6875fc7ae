"""Compares two states of loaders: their differences, and whether a loader can load the other."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stateful_gpu_loader.engine.resume.rank_states import comparable
from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.state.bad_samples import shortened
from stateful_gpu_loader.state.schema import ADDED_BY_FRAMEWORKS, COMPARED, Fingerprint
from stateful_gpu_loader.state.torchdata import is_torchdata_state
from stateful_gpu_loader.tools.inspect_state import SAMPLES, Description, describe
from stateful_gpu_loader.tools.state_files import FoundState, NoState, find_states

IDENTITY, PLACE, INFORMATION = "identity", "place", "information"
_PLACE = ("epoch", "position", "index_digest", "ahead", "user")
_OTHER_LIBRARY = "this package may load torchdata's states; torchdata cannot load this one's"
_REFUSED, _UNKNOWN = "a load refuses it", "not compared, because one of the states does not hold it"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One field of two states that differs."""

    field: str
    kind: str
    """``"identity"`` must not change. ``"place"`` is the loader's position. ``"information"`` is
    neither refused nor used by a load."""
    first: Any
    second: Any
    meaning: str
    """Effect on a load; empty if there is none."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Result of comparing a second state with a first."""

    same_identity: bool
    """Whether all fields that must not change are equal."""
    same_place: bool
    """Whether both states are at the same place of their streams."""
    resumes: bool | None
    """Whether the first state's loader can load the second state; None if a state does not describe
    its loader."""
    accept: tuple[str, ...]
    """Names for ``accept=`` that the load would need."""
    accept_is_enough: bool
    """Whether the fingerprint is accepted with these names. Only a load checks the position and the
    states of the user's objects."""
    differences: tuple[Difference, ...]
    samples_apart: int | None
    """Number of samples, all ranks together, from the first state to the second; negative if the
    second is earlier, None if unknown. Epochs in between count as whole."""
    batches_apart: int | None
    """The same distance in batches of the global batch size."""

    @property
    def is_same(self) -> bool:
        """Whether both identity and place are equal."""
        return self.same_identity and self.same_place

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {"is_same": self.is_same, **asdict(self)}


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> Comparison:
    """Compare two states field by field.

    Raises:
        StateMismatch: one of them is not a state, or is damaged.

    >>> from stateful_gpu_loader import StatefulGPULoader
    >>> loader = StatefulGPULoader(range(8), batch_size=2, seed=1)
    >>> before, _ = loader.state_dict(), next(iter(loader))
    >>> found = compare(before, loader.state_dict())
    >>> found.same_identity, found.same_place, found.samples_apart, found.batches_apart
    (True, False, 2, 1)
    """
    one, other = describe(first), describe(second)
    ours = one.fingerprint is not None and other.fingerprint is not None
    identity = _identity(one, other) if ours else ()
    place = _place(first, second)
    if one.library != other.library:
        identity = (_different("library", IDENTITY, one.library, other.library, _OTHER_LIBRARY),)
    refused = [found for found in identity if found.meaning != _UNKNOWN]
    same_run = not refused
    accept, is_enough = _accept(one, other, refused) if ours else ((), False)
    samples, batches = _apart(one, other) if same_run else (None, None)
    return Comparison(
        same_identity=same_run,
        same_place=not place,
        resumes=not [found for found in refused if found.field != "seed"] if ours else None,
        accept=accept,
        accept_is_enough=is_enough,
        differences=(*identity, *place, *_information(one, other)),
        samples_apart=samples,
        batches_apart=batches,
    )


def _identity(one: Description, other: Description) -> tuple[Difference, ...]:
    found = []
    if one.seed != other.seed:
        meaning = "a loader with an explicit seed refuses it; with seed=None it takes the state's"
        found.append(_different("seed", IDENTITY, one.seed, other.seed, meaning))
    loader, saved = (Fingerprint(**(each.fingerprint or {})) for each in (one, other))
    for field in COMPARED:
        difference = loader.difference(saved, field)
        if difference is not None:
            now, before = difference
            meaning = _UNKNOWN if before is None or now is None else _REFUSED
            found.append(_different(field, IDENTITY, before, now, meaning))
    return tuple(found)


def _place(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return the differences in place: all fields except identity and information.

    All fields of torchdata's states belong to the place.
    """
    not_place = {"format", "version", "seed", "fingerprint", "global_batch_size", "bad_samples"}
    if not is_torchdata_state(first):
        not_place |= ADDED_BY_FRAMEWORKS
    keys = sorted({*first, *second} - not_place, key=lambda key: (key not in _PLACE, str(key)))
    return tuple(
        _different(str(key), PLACE, _plain(first.get(key)), _plain(second.get(key)))
        for key in keys
        if comparable(first.get(key)) != comparable(second.get(key))
    )


def _information(one: Description, other: Description) -> tuple[Difference, ...]:
    found = []
    before, now = ((each.fingerprint or {}).get("decoder_version") for each in (one, other))
    if before != now:
        meaning = "loading warns: pixels may differ in their last bits"
        found.append(_different("decoder_version", INFORMATION, before, now, meaning))
    if one.global_batch_size != other.global_batch_size:
        size, another = one.global_batch_size, other.global_batch_size
        found.append(_different("global_batch_size", INFORMATION, size, another))
    if (one.bad_samples, one.bad_sample_list) != (other.bad_samples, other.bad_sample_list):
        found.append(_different("bad_samples", INFORMATION, one.bad_samples, other.bad_samples))
    return tuple(found)


def _accept(
    one: Description, other: Description, refused: list[Difference]
) -> tuple[tuple[str, ...], bool]:
    """Return the names for ``accept=``, and whether a load with them succeeds.

    The rule is that of the load itself.
    """
    fields = {found.field for found in refused}
    names = tuple(sorted({"dataset" if field == "length" else field for field in fields}))
    loader, saved = (Fingerprint(**(each.fingerprint or {})) for each in (one, other))
    try:
        loader.check(saved, accept=names, position=other.position)
    except StateMismatch:
        return names, False
    # A place needs the same kind of dataset and user objects.
    places = [(each.unit, [held.name for held in each.user_objects]) for each in (one, other)]
    return names, places[0] == places[1]


def _apart(one: Description, other: Description) -> tuple[int | None, int | None]:
    """Return the samples and batches from one place to another of the same stream."""
    if one.epoch is None or other.epoch is None:
        return None, None
    places = [_samples_before(each) for each in (one, other)]
    samples = batches = None
    if one.epoch == other.epoch and None not in (one.samples_seen, other.samples_seen):
        samples = (other.samples_seen or 0) - (one.samples_seen or 0)
    elif places[0] is not None and places[1] is not None:
        samples = places[1] - places[0]
    seen = one.batches_seen, other.batches_seen
    same_size = one.global_batch_size == other.global_batch_size
    if one.epoch == other.epoch and same_size and seen[0] is not None and seen[1] is not None:
        batches = seen[1] - seen[0]
    return samples, batches


def _samples_before(found: Description) -> int | None:
    """Return the samples of the run before a place, with whole epochs.

    With ``drop_last`` an epoch ends before an incomplete batch.
    """
    length, size = found.epoch_samples, found.global_batch_size
    if found.unit != SAMPLES or length is None or found.epoch is None:
        return None
    if (found.fingerprint or {}).get("drop_last"):
        if size is None:
            return None
        length -= length % size
    return found.epoch * length + found.position


def _different(field: str, kind: str, first: Any, second: Any, meaning: str = "") -> Difference:
    return Difference(field=field, kind=kind, first=first, second=second, meaning=meaning)


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold, if necessary the beginning of a repr."""
    is_plain = value is None or isinstance(value, bool | int | float | str)
    return value if is_plain else shortened(repr(value))


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A state in one file, and the state at the same place of another file."""

    where: str
    first: FoundState | None
    """None if only the second file has a state there."""
    second: FoundState | None
    comparison: Comparison | None
    """None if one of the states is missing."""


def compare_files(
    first: str | os.PathLike[str], second: str | os.PathLike[str], where: str | None = None
) -> list[Pair]:
    """Compare the states at the same places of two files or folders.

    Single states are compared wherever they are.

    Args:
        first, second: paths, as for :func:`~stateful_gpu_loader.tools.state_files.find_states`.
        where: compare only the states at this place, which is their ``where``.

    Raises:
        NoState: a file has no state, or no state at this place.
        StateMismatch: a state is damaged.
    """
    one, other = (_at(path, where) for path in (first, second))
    if len(one) == len(other) == 1:
        ((name, state),), (saved,) = one.items(), other.values()
        return [_pair(name, state, saved)]
    return [_pair(name, one.get(name), other.get(name)) for name in {**one, **other}]


def _at(path: str | os.PathLike[str], where: str | None) -> dict[str, FoundState]:
    """Return the states by place; in a folder a place begins with the file's name."""
    states = find_states(path)
    chosen = [found for found in states if where is None or found.where == where]
    if not chosen:
        raise NoState(
            f"{os.fspath(path)!r} has no state at {where!r}. Remedy: pass one of "
            f"{[found.where for found in states]}"
        )
    return {_name(found, Path(path)): found for found in chosen}


def _name(found: FoundState, top: Path) -> str:
    file = "" if found.path == top else f"{found.path.relative_to(top)}: "
    return f"{file}{found.where}"


def _pair(name: str, first: FoundState | None, second: FoundState | None) -> Pair:
    comparison = None
    if first is not None and second is not None:
        comparison = compare(first.state, second.state)
    return Pair(where=name, first=first, second=second, comparison=comparison)
