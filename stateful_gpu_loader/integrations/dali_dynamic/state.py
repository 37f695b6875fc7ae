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
    """Where a reader stands: the samples that it delivered, none that it prefetched."""

    epoch: int = 0
    """Counted from 0; one that was broken off counts."""
    position: int = 0
    """Samples of the epoch that were delivered."""
    shard_id: int = 0
    """The shard that the epoch goes through."""
    batch_size: int | None = None
    """None before anything was delivered; 1 of samples one by one."""
    epoch_size: int | None = None
    """Samples of all shards together, as DALI pads them; None before anything was delivered."""
    reader: str | None = None
    """DALI's own state; None before anything was delivered."""


@dataclass(frozen=True, kw_only=True)
class ReaderState:
    """What ``StatefulReader.state_dict()`` returns; small, flat and plain."""

    place: Place
    configuration: Mapping[str, Any]
    """Values of JSON, of what must not change."""

    def to_dict(self) -> dict[str, Any]:
        """A fresh dictionary of plain values.

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
        """Check ``state``: DALI waits for ever for a reader whose own state was altered.

        Raises:
            StateMismatch: it is no such state, of a later version, or was altered.
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
