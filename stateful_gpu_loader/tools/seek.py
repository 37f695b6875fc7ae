"""Moves a state to another place of its stream, without its loader."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stateful_gpu_loader.engine.resume.seek import state_of_place
from stateful_gpu_loader.errors import NoSuchPlace
from stateful_gpu_loader.state.schema import Fingerprint, LoaderState
from stateful_gpu_loader.tools.state_files import FoundState, NoState, find_states, write_states


def state_at(
    state: Mapping[str, Any],
    *,
    epoch: int,
    position: int | None = None,
    samples: int | None = None,
    percent: float | None = None,
) -> dict[str, Any]:
    """Return the state that ``state_dict()`` would have returned at another place of the stream.

    The arguments are those of :meth:`StatefulGPULoader.seek`, which refuses more, because it knows
    the dataset. The given state is not changed.

    Args:
        state: result of ``StatefulGPULoader.state_dict()`` at any place.

    Raises:
        NoSuchPlace: the place lies outside the epoch, or its state cannot be computed.
        StateMismatch: this is not a state of a StatefulGPULoader, or it is damaged.

    >>> from stateful_gpu_loader import StatefulGPULoader
    >>> saved = StatefulGPULoader(range(10), batch_size=4).state_dict()
    >>> loader = StatefulGPULoader(range(10), batch_size=4)
    >>> loader.load_state_dict(state_at(saved, epoch=3, percent=50))
    >>> [batch.tolist() for batch in loader]
    [[4, 5, 6, 7], [8, 9]]
    """
    moved = state_of_place(
        LoaderState.from_dict(state),
        epoch=epoch,
        position=position,
        samples=samples,
        percent=percent,
    )
    return moved.to_dict()


@dataclass(frozen=True)
class Moved:
    """A state in a file, and the place from which its loader now resumes."""

    where: str
    """Place of the state in the file."""
    epoch: int
    position: int
    """Position in the epoch's global order."""
    note: str = ""
    """Says that no uninterrupted step begins here; otherwise empty."""


def seek_file(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    epoch: int,
    position: int | None = None,
    samples: int | None = None,
    percent: float | None = None,
    where: str | None = None,
) -> list[Moved]:
    """Write a copy of a file from which the loader resumes at another place of its stream.

    The states of all ranks of one loader are moved together. The rest of the file, such as the
    model and a trainer's counters, is kept.

    Args:
        path: the file, of any kind that :func:`find_states` reads.
        out: the new file.
        where: place of the loader's state in the file, needed if it holds several loaders.

    Raises:
        NoSuchPlace, StateMismatch: as for :func:`state_at`.
        NoState: the file has no state or states of several loaders, or cannot be read or written.
    """
    place = {"epoch": epoch, "position": position, "samples": samples, "percent": percent}
    found = states_of_one_loader(path, where)
    changes = [(each, state_at(each.state, **place)) for each in found]  # type: ignore[arg-type]
    write_states(path, changes, out)
    return [
        Moved(each.where, state["epoch"], state["position"], _note_on(state))
        for each, state in changes
    ]


def _note_on(state: Mapping[str, Any]) -> str:
    size, position = state["global_batch_size"], state["position"]
    offset = position % size if size else 0
    if not offset or position == Fingerprint.from_text(state["fingerprint"]).length:
        return ""
    return (
        f"position {position} lies inside a step of {size} samples. The samples and their order "
        "stay the same, and the following batches are cut at other places than in an "
        f"uninterrupted run. Steps begin at {position - offset} and {position - offset + size}"
    )


def states_of_one_loader(path: str | os.PathLike[str], where: str | None) -> list[FoundState]:
    """Return the states of one loader in a file: one state, or one state of each rank.

    Raises:
        NoState: the file has no state, or states of several loaders or epochs.
        NoSuchPlace: the states are torchdata's.
        StateMismatch: a state is damaged.
    """
    every = find_states(path)
    found = [each for each in every if where in (None, each.where)]
    if found and all(each.is_of_torchdata for each in found):
        raise NoSuchPlace(
            f"the state at {found[0].where!r} in {str(found[0].path)!r} is of torchdata's "
            "StatefulDataLoader. It holds the number of delivered batches, but not the dataset, "
            "order and epoch. Remedy: load it into a StatefulGPULoader, finish the epoch, and use "
            "the state of that loader"
        )
    states = [LoaderState.from_dict(each.state) for each in found if not each.is_of_torchdata]
    is_one = len({(state.seed, state.epoch, state.fingerprint) for state in states}) == 1
    if is_one and len(states) == len(found):
        return found
    places = ", ".join(repr(f"{each.where}") + f" in {each.path.name}" for each in every[:20])
    what = "are of several loaders or epochs" if found else f"are not at {where!r}"
    raise NoState(
        f"the states in {str(path)!r} {what}: {places}. Remedy: choose one with --where, or pass "
        "the path of one file"
    )
