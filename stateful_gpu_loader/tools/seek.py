"""Move a state to another place of its stream, without the loader that it belongs to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stateful_gpu_loader.engine.resume.seek import state_of_place
from stateful_gpu_loader.errors import NoSuchPlace
from stateful_gpu_loader.state.schema import LoaderState
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

    The arguments are those of :meth:`StatefulGPULoader.seek`, which does the same to a loader; it
    knows more than a state does, for example that a dataset has a state of its own although no
    worker has begun. The given state is not changed.

    Args:
        state: what ``StatefulGPULoader.state_dict()`` returned, at any place.

    Raises:
        NoSuchPlace: the place lies outside the epoch, or its state cannot be computed.
        StateMismatch: this is no state of a StatefulGPULoader, or a damaged one.

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
    """A state in a file, and where its loader now goes on."""

    where: str
    """The place of the state in the file."""
    epoch: int
    position: int
    """Position in the epoch's global order."""


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
    """Write a copy of a file in which the loader goes on at another place of its stream.

    The states of several ranks of one loader are moved together. All else in the file is kept, also
    the model and what a trainer counts by itself.

    Args:
        path: the file, of any kind that :func:`find_states` reads.
        out: the new file.
        where: place of the loader's state in the file, needed if it holds several loaders.

    Raises:
        NoSuchPlace, StateMismatch: as of :func:`state_at`.
        NoState: there is no state, there are those of several loaders, or the file cannot be read
            or written.
    """
    place = {"epoch": epoch, "position": position, "samples": samples, "percent": percent}
    found = states_of_one_loader(path, where)
    changes = [(each, state_at(each.state, **place)) for each in found]  # type: ignore[arg-type]
    write_states(path, changes, out)
    return [Moved(each.where, state["epoch"], state["position"]) for each, state in changes]


def states_of_one_loader(path: str | os.PathLike[str], where: str | None) -> list[FoundState]:
    """Return the states of one loader in a file: one, or one of each rank.

    Raises:
        NoState: there is none, or there are those of several loaders, or of several epochs.
        NoSuchPlace: they are torchdata's.
        StateMismatch: one is no state of a StatefulGPULoader, or a damaged one.
    """
    every = find_states(path)
    found = [each for each in every if where in (None, each.where)]
    if found and all(each.is_of_torchdata for each in found):
        raise NoSuchPlace(
            f"the state at {found[0].where!r} in {str(found[0].path)!r} is one of torchdata's "
            "StatefulDataLoader, which says how many batches were delivered, but not of which "
            "dataset, order and epoch. Remedy: load it into a StatefulGPULoader, which takes it, "
            "finish the epoch, and use the state that this loader then returns"
        )
    states = [LoaderState.from_dict(each.state) for each in found if not each.is_of_torchdata]
    is_one = len({(state.seed, state.epoch, state.fingerprint) for state in states}) == 1
    if is_one and len(states) == len(found):
        return found
    places = ", ".join(repr(f"{each.where}") + f" in {each.path.name}" for each in every[:20])
    what = "are of several loaders or epochs" if found else f"have no {where!r} among them"
    raise NoState(
        f"the states in {str(path)!r} {what}: {places}. Remedy: choose one with --where, or give "
        "the path of one file"
    )
