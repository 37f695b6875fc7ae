"""State of a DALI pipeline as a loader: its schema and its checks."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

from stateful_gpu_loader.datasets.protobuf import fields
from stateful_gpu_loader.integrations.dali_identity import check_header, foreign
from stateful_gpu_loader.integrations.dali_pipeline.description import Description, from_text
from stateful_gpu_loader.state.schema import MAX_EPOCH, MAX_POSITION

FORMAT = "stateful_gpu_loader DALI pipeline"
VERSION = 1

WRITER = "DALILoader"

_TEXTS = ("checkpoint", "checksum", "pipeline", "dali")
_KEYS = ("epoch", "position", *_TEXTS)


@dataclass(frozen=True)
class Place:
    """Position in a stream of batches."""

    epoch: int
    position: int
    """Number of delivered batches of the epoch."""
    checkpoint: bytes
    """DALI's checkpoint at the last delivered batch."""

    @property
    def runs(self) -> int:
        """Number of batches since the pipeline was built, or its source last ended."""
        return _pipeline_data(self.checkpoint)[0]

    @property
    def source_epoch(self) -> int:
        """Number of times that an external source has ended."""
        return _pipeline_data(self.checkpoint)[1]


@dataclass(frozen=True, kw_only=True)
class DALIState:
    """Contents of ``DALILoader.state_dict()``: small, flat and plain."""

    place: Place | None
    """Position of the stream; None before the pipeline was built."""
    description: Description | None
    """Description of the pipeline; None before it was built."""
    dali: str | None
    """Version of DALI; another version causes a warning."""

    def to_dict(self) -> dict[str, Any]:
        """Return a new dictionary of plain values."""
        place = self.place
        return {
            "format": FORMAT,
            "version": VERSION,
            "epoch": 0 if place is None else place.epoch,
            "position": 0 if place is None else place.position,
            "checkpoint": None if place is None else base64.b64encode(place.checkpoint).decode(),
            "checksum": None if place is None else checksum(place.checkpoint),
            "pipeline": None if self.description is None else json.dumps(self.description),
            "dali": self.dali,
        }

    @classmethod
    def from_dict(cls, state: Any) -> DALIState:
        """Check every field of ``state`` and return it.

        Raises:
            StateMismatch: this is not such a state, comes from a later version, or is damaged.
        """
        check_header(state, format=FORMAT, version=VERSION, keys=_KEYS, of=WRITER)
        for name, highest in (("epoch", MAX_EPOCH), ("position", MAX_POSITION)):
            if type(state[name]) is not int or not 0 <= state[name] <= highest:
                raise _foreign(name, state[name], f"an int from 0 to {highest}")
        if all(state[name] is None for name in _TEXTS):
            if state["epoch"] or state["position"]:
                raise _foreign("checkpoint", None, "that of the place")
            return cls(place=None, description=None, dali=None)
        for name in _TEXTS:
            if not isinstance(state[name], str):
                raise _foreign(name, state[name], "a str")
        try:
            checkpoint = base64.b64decode(state["checkpoint"], validate=True)
            _pipeline_data(checkpoint)
        except (ValueError, RecursionError) as error:
            raise _foreign("checkpoint", state["checkpoint"], f"DALI's ({error})") from None
        if checksum(checkpoint) != state["checksum"]:
            raise _foreign("checkpoint", state["checkpoint"], f"of checksum {state['checksum']}")
        try:
            description = from_text(state["pipeline"])
        except (ValueError, RecursionError) as error:
            raise _foreign("pipeline", state["pipeline"], f"a description ({error})") from None
        place = Place(state["epoch"], state["position"], checkpoint)
        return cls(place=place, description=description, dali=state["dali"])


def checksum(checkpoint: bytes) -> str:
    """Return the digest of a checkpoint, because DALI does not check it.

    One changed byte can make DALI skip 10**18 samples.
    """
    return blake2b(checkpoint, digest_size=8).hexdigest()


def _pipeline_data(checkpoint: bytes) -> tuple[int, int]:
    """Return the iteration and the epoch in a checkpoint: JSON in field 1 of field 2.

    Raises:
        ValueError: this is not a DALI checkpoint.
    """
    noted = b""
    for number, _, value in fields(checkpoint):
        if number == 2 and isinstance(value, memoryview):
            for inner, _, text in fields(value):
                if inner == 1 and isinstance(text, memoryview):
                    noted = bytes(text)
    data = json.loads(noted)
    if not isinstance(data, dict):
        raise ValueError("it notes no iteration")
    return _count(data.get("iter")), _count(data.get("epoch_idx"))


def _count(number: Any) -> int:
    if type(number) is not int or not 0 <= number <= MAX_POSITION:
        raise ValueError(f"it notes an iteration or an epoch of {number!r}")
    return number


_foreign = partial(foreign, of=WRITER)
