"""The state of a reader of dynamic mode: its schema and its checks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from stateful_gpu_loader.integrations.dali_identity import check_header, digest, foreign

FORMAT = "stateful_gpu_loader DALI reader"
VERSION = 1

_foreign = partial(foreign, of="StatefulReader")


@dataclass(frozen=True, kw_only=True)
class Place:
    """The position of a reader: it counts delivered samples, but none that were prefetched."""

    epoch: int = 0
    """Number of the epoch, counted from 0; one that was left early counts."""
    position: int = 0
    """Number of samples of the epoch that were delivered."""
    shard_id: int = 0
    """Shard that the epoch reads."""
    batch_size: int | None = None
    """Batch size; None before anything was delivered, 1 for samples one by one."""
    epoch_size: int | None = None
    """Number of samples in all shards, with DALI's padding; None before the first delivery."""
    reader: str | None = None
    """DALI's own state; None before anything was delivered."""


@dataclass(frozen=True, kw_only=True)
class ReaderState:
    """The contents of ``StatefulReader.state_dict()``, which is small, flat and plain."""

    place: Place
    configuration: Mapping[str, Any]
    """What must not change, as JSON values."""

    def to_dict(self) -> dict[str, Any]:
        """Return a new dictionary of plain values.

        >>> state = ReaderState(place=Place(epoch=3), configuration={"seed": 7})
        >>> ReaderState.from_dict(state.to_dict()) == state
        True
        """
        state = {
            "format": FORMAT,
            "version": VERSION,
            **asdict(self.place),
            "configuration": json.dumps(self.configuration),
        }
        return {**state, "digest": digest(dict(sorted(state.items())))}

    @classmethod
    def from_dict(cls, state: Any) -> ReaderState:
        """Check ``state`` and return it: DALI waits for ever for a reader with an altered state.

        Raises:
            StateMismatch: it is not such a state, is of a later version, or was altered.
        """
        keys = {*_TYPES, "digest"}
        check_header(state, format=FORMAT, version=VERSION, keys=keys, of="StatefulReader")
        for name, kinds in _TYPES.items():
            if type(state[name]) not in kinds:
                raise _foreign(name, state[name], " or ".join(kind.__name__ for kind in kinds))
        expected = digest({name: state[name] for name in sorted(state) if name != "digest"})
        if state["digest"] != expected:
            raise _foreign("digest", state["digest"], expected)
        configuration = json.loads(state["configuration"])
        place = {name: state[name] for name in _TYPES if name != "configuration"}
        return cls(place=Place(**place), configuration=configuration)


_TYPES: dict[str, tuple[type, ...]] = {
    "epoch": (int,),
    "position": (int,),
    "shard_id": (int,),
    "batch_size": (int, type(None)),
    "epoch_size": (int, type(None)),
    "reader": (str, type(None)),
    "configuration": (str,),
}
