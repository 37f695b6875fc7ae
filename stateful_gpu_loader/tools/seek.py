"""Move a state to another place of its stream, without the loader that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stateful_gpu_loader.engine.resume.seek import state_of_place
from stateful_gpu_loader.state.schema import LoaderState


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
    >>> next(iter(loader)).tolist(), loader.epoch
    ([4, 5, 6, 7], 3)
    """
    moved = state_of_place(
        LoaderState.from_dict(state),
        epoch=epoch,
        position=position,
        samples=samples,
        percent=percent,
    )
    return moved.to_dict()
