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
    # have been registered, and restored, before it. It refuses no state.
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
    _put(sorted(ways, key=_turn))


def _turn(way: tuple[Stateful, SavedState, _WayBack]) -> int:
    """In which turn a state is put, so that a refusal costs the least.

    Most refusals are those of our own objects, which are unchanged by them; put back, they would
    have lost their iterators. Whose former state cannot be had comes last.
    """
    stateful, _, way_back = way
    return 2 if way_back is None else int(stateful.checks_first)


def _put(ways: list[tuple[Stateful, SavedState, _WayBack]]) -> None:
    for number, (stateful, saved, _) in enumerate(ways):
        try:
            stateful.put(saved)
        except BaseException as error:
            is_unchanged = stateful.checks_first and isinstance(error, Exception)
            changed = ways[: number + (not is_unchanged)]
            changed_for_good = _go_back(changed)
            if not isinstance(error, Exception):
                raise
            text = f"{stateful} refused its state: {type(error).__name__}: {error}"
            if is_unchanged:
                text += "\nIt is unchanged."
            if before := [other.name for other, _, _ in ways[:number]]:
                text += f"\n{before} had been restored before it."
            back = [other for other, _, _ in changed if other.name not in changed_for_good]
            if back:
                text += f"\nThe former state is back in {[other.name for other in back]}."
            if detached := [other.name for other in back if other.has_iterators]:
                text += (
                    f"\nIterators of {detached} that were under way do not move its state any "
                    "more. Remedy: begin new ones"
                )
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
