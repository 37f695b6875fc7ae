"""RankedState: the states of all data-parallel ranks as one value of a distributed checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from stateful_gpu_loader.engine.resume.rank_states import gathered, merge_state_dicts
from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.loader import StatefulGPULoader
from stateful_gpu_loader.state.typed_json import decode, encode, parse, write

WORLD_SIZE = "world_size"
RANKS = "dp_ranks"

_REMEDY_FOREIGN = "load what the state_dict() of this class returned, unchanged"


class RankedState:
    """Wraps a loader for ``torch.distributed.checkpoint`` if its ranks have different states.

    DCP keeps one rank's value of each key, and loads only keys that the loading side has. So this
    state has two keys with the same values on every rank: the number of ranks, and one JSON text
    with the states of all ranks. A loader of map-style data without states of your own objects does
    not need it: ``dcp.save({"loader": loader})``.

    On the saved number of ranks each rank gets its own state back. On another number each rank
    gets the merged state of all.

    Args:
        loader: this rank's loader, or any object with ``state_dict`` and ``load_state_dict``,
            which then resumes only on the same number of ranks.
        group: the data-parallel group, ``mesh["dp"].get_group()``; None is the default group.
        dp_rank, dp_world_size: data-parallel rank and number of data-parallel ranks. They are
            needed if ``group`` also contains ranks of tensor or pipeline parallelism. None takes
            both from the group.

    Raises:
        ValueError: only one of ``dp_rank`` and ``dp_world_size`` is given, or ``dp_rank`` is out of
            range.

    >>> from stateful_gpu_loader import StatefulGPULoader
    >>> state = RankedState(StatefulGPULoader([1, 2, 3], seed=1)).state_dict()
    >>> sorted(state), state["world_size"]
    (['dp_ranks', 'world_size'], 1)
    >>> RankedState(StatefulGPULoader([1, 2, 3], seed=1)).load_state_dict(state)
    """

    def __init__(
        self,
        loader: StatefulGPULoader[Any],
        group: Any = None,
        *,
        dp_rank: int | None = None,
        dp_world_size: int | None = None,
    ) -> None:
        if dp_rank is not None or dp_world_size is not None:
            _check_rank(dp_rank, dp_world_size)
        self.loader = loader
        self.group = group
        self.dp_rank = dp_rank
        self.dp_world_size = dp_world_size

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all ranks, on every rank; a collective call like ``dcp.save``.

        Raises:
            ValueError: the group does not contain every data-parallel rank.
            StateMismatch: ranks that should deliver the same batches have different states.
            TypeError: a state holds an object of yours without a JSON form.
        """
        rank, size = self._place()
        found = gathered((rank, size, self.loader.state_dict()), self.group)
        ranks: dict[str, Any] = {}
        for other, _, state in sorted(found, key=lambda one: int(one[0])):
            encoded = encode(state)
            if ranks.setdefault(_key(other), encoded) != encoded:
                raise StateMismatch(
                    f"state of {_key(other)}",
                    saved=encoded,
                    present=ranks[_key(other)],
                    remedy="let all processes of one data-parallel rank take the same steps",
                )
        sizes = {size for _, size, _ in found}
        if len(sizes) > 1 or list(ranks) != [_key(n) for n in range(size)]:
            raise ValueError(
                f"the group has the ranks {[*ranks]}, and a number of ranks of {sorted(sizes)}. "
                "Remedy: give a group that contains each data-parallel rank, with its dp_rank "
                "and the dp_world_size of all"
            )
        return {WORLD_SIZE: size, RANKS: write(ranks)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load this rank's state or, on another number of ranks, the merged state of all.

        Args:
            state_dict: result of :meth:`state_dict`; an empty one changes nothing.

        Raises:
            StateMismatch: this is not such a state, it does not fit the loader, or its ranks'
                states cannot be merged for another number of ranks. The loader is unchanged.
        """
        if not state_dict:
            return
        saved_size, ranks = _checked(state_dict)
        rank, size = self._place()
        refused: StateMismatch | None = None
        if size == saved_size:
            try:
                self.loader.load_state_dict(_decoded(ranks[_key(rank)]))
            except StateMismatch as error:
                # For another batch size the position follows from the states of all ranks.
                refused = error
            if refused is None:
                return
            if refused.field != "global_batch_size":
                raise refused
        states = [_decoded(state) for state in ranks.values()]
        try:
            merged = merge_state_dicts(states)
        except StateMismatch as error:
            raise refused or StateMismatch(
                WORLD_SIZE,
                saved=saved_size,
                present=size,
                remedy=f"resume on {saved_size} data-parallel ranks: their states cannot be "
                f"merged, {error.field!r} differs between them",
            ) from error
        self.loader.load_state_dict(merged)

    def _place(self) -> tuple[int, int]:
        """Return this process's data-parallel rank, and the number of data-parallel ranks."""
        if self.dp_rank is not None and self.dp_world_size is not None:
            return self.dp_rank, self.dp_world_size
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(self.group), dist.get_world_size(self.group)
        return 0, 1


def _key(rank: int) -> str:
    return f"dp_rank_{rank}"


def _check_rank(dp_rank: int | None, dp_world_size: int | None) -> None:
    if dp_rank is None or dp_world_size is None or not 0 <= dp_rank < dp_world_size:
        raise ValueError(
            f"{dp_rank = } of {dp_world_size = } is not a rank. Remedy: give both, as "
            'mesh["dp"].get_local_rank() and mesh["dp"].size(), or neither'
        )


def _checked(state: Any) -> tuple[int, dict[str, Any]]:
    """Return the number of ranks and the encoded state of each.

    Raises:
        StateMismatch: this is not a state of all ranks.
    """
    if not isinstance(state, Mapping) or set(state) != {WORLD_SIZE, RANKS}:
        keys = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise StateMismatch("keys", saved=keys, present=[RANKS, WORLD_SIZE], remedy=_REMEDY_FOREIGN)
    size, text = state[WORLD_SIZE], state[RANKS]
    if type(size) is not int or size < 1:
        raise StateMismatch(
            WORLD_SIZE, saved=size, present="an int above 0", remedy=_REMEDY_FOREIGN
        )
    try:
        ranks = parse(text.encode())
    except (AttributeError, ValueError) as error:
        raise StateMismatch(
            RANKS, saved=text, present=f"JSON ({error})", remedy=_REMEDY_FOREIGN
        ) from error
    found = len(ranks) if isinstance(ranks, dict) else type(ranks).__name__
    if found != size or set(ranks) != {_key(rank) for rank in range(size)}:
        raise StateMismatch(
            RANKS, saved=f"{found} states", present=f"{size}, one a rank", remedy=_REMEDY_FOREIGN
        )
    return size, ranks


def _decoded(encoded: Any) -> Any:
    try:
        return decode(encoded)
    except ValueError as error:
        raise StateMismatch(
            RANKS, saved=encoded, present=f"a state ({error})", remedy=_REMEDY_FOREIGN
        ) from error
