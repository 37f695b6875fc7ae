"""Events of a training process, one JSON object a line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """A process was launched; its parent reports this, the process reports all other events."""

    num_workers: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """The first batch was delivered."""

    step: int
    """Step of that batch, counted from 0 over all epochs."""
    seconds: float
    """Time from the loader's ``load_state_dict``, or its first ``next()``, to this batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One batch was trained on."""

    epoch: int
    step: int
    labels: str
    """Digest of the batch's targets in their order."""
    pixels: str
    """Digest of every bit of the batch's images."""
    loss: str
    """``float.hex`` of the loss."""

    @property
    def loss_value(self) -> float:
        return float.fromhex(self.loss)


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A checkpoint was written."""

    step: int
    """Next step after the checkpoint."""
    state_bytes: int
    """Size of the loader's pickled state."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """All epochs are over."""

    weights: str
    """Digest of all parameters and buffers."""


Event = Launched | Started | Step | Saved | Finished

_KINDS: dict[str, type[Event]] = {
    kind.__name__: kind for kind in (Launched, Started, Step, Saved, Finished)
}


def to_line(event: Event) -> str:
    """Convert an event to one line of text, including the line end.

    >>> to_line(Saved(step=4, state_bytes=600))
    '{"kind": "Saved", "step": 4, "state_bytes": 600}\\n'
    """
    return json.dumps({"kind": type(event).__name__, **asdict(event)}) + "\n"


def from_line(line: str) -> Event:
    """Read the event in a line.

    >>> from_line(to_line(Saved(step=4, state_bytes=600)))
    Saved(step=4, state_bytes=600)
    """
    fields = json.loads(line)
    return _KINDS[fields.pop("kind")](**fields)
