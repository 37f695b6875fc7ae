"""States put into several objects: into all of them, or into none."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch.utils.data import DataLoader

from stateful_gpu_loader.checkpoint.document import SavedState
from stateful_gpu_loader.checkpoint.objects import Stateful
from stateful_gpu_loader.errors import CheckpointError

_WayBack = Callable[[], object] | None


def put_one(stateful: Stateful, saved: SavedState) -> None:
    """Put a state into an object; if it refuses, it gets its former state back.

    Raises:
        CheckpointError: the state is of another type, or the object refuses it.
    """
    stateful.check(saved)
    # Asked for its state, torchdata's loader starts workers and draws from its generator, which may
    # have been registered, and restored, before it. No loader changes before it has checked all.
    way_back = bool if isinstance(stateful.object, DataLoader) else _way_back(stateful)
    _put([(stateful, saved, way_back)])


def put_all(objects: Mapping[str, Stateful], states: Mapping[str, SavedState]) -> None:
    """Put its state into each object; if one refuses, all get their former states back.

    Raises:
        CheckpointError: a state is of another type, or an object refuses it.
    """
    for name, stateful in objects.items():
        stateful.check(states[name])
    ways = [(stateful, states[name], _way_back(stateful)) for name, stateful in objects.items()]
    # Whose former state cannot be had comes last: the others may still refuse before it.
    _put(sorted(ways, key=lambda way: way[2] is None))


def _put(ways: list[tuple[Stateful, SavedState, _WayBack]]) -> None:
    for number, (stateful, saved, _) in enumerate(ways):
        try:
            stateful.put(saved)
        except BaseException as error:
            changed = ways[: number + 1]
            changed_for_good = _go_back(changed)
            if not isinstance(error, Exception):
                raise
            before = [other.name for other, _, _ in changed[:-1]]
            as_before = [name for name in (*before, stateful.name) if name not in changed_for_good]
            text = f"{stateful} refused its state: {type(error).__name__}: {error}"
            if before:
                text += f"\n{before} had been restored before it."
            if as_before:
                text += f"\nThe former state is back in {as_before}."
            if changed_for_good:
                text += (
                    f"\nThe former state of {changed_for_good} could not be put back. Remedy: "
                    "build these anew"
                )
            raise CheckpointError(text) from error


def _go_back(changed: list[tuple[Stateful, SavedState, _WayBack]]) -> list[str]:
    """Put the former states back, the last first; names of those that did not take it."""
    failed = []
    for stateful, _, way_back in reversed(changed):
        try:
            if way_back is None:
                failed.append(stateful.name)
            else:
                way_back()
        except Exception:
            failed.append(stateful.name)
    return failed[::-1]


def _way_back(stateful: Stateful) -> _WayBack:
    try:
        return stateful.way_back()
    except CheckpointError:
        return None
