"""What is told of a training process, one JSON object a line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """A process was launched; told by its parent, all others by itself."""

    num_workers: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """The first batch is there."""

    step: int
    """Of that batch, counted from 0 over all epochs."""
    seconds: float
    """From the loader's ``load_state_dict``, or its first ``next()``, to this batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One batch was trained on."""

    epoch: int
    step: int
    labels: str
    """Digest of the batch's targets in their order."""
    pixels: str
    """Digest of the batch's images, every bit of them."""
    loss: str
    """``float.hex`` of the loss."""

    @property
    def loss_value(self) -> float:
        """The loss as a number."""
        return float.fromhex(self.loss)


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A checkpoint was written."""

    step: int
    """The next to be trained after it."""
    state_bytes: int
    """Size of the loader's part of it, pickled."""


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
    """One line of text, its end included.

    >>> to_line(Saved(step=4, state_bytes=600))
    '{"kind": "Saved", "step": 4, "state_bytes": 600}\\n'
    """
    return json.dumps({"kind": type(event).__name__, **asdict(event)}) + "\n"


def from_line(line: str) -> Event:
    """The event of a line.

    >>> from_line(to_line(Saved(step=4, state_bytes=600)))
    Saved(step=4, state_bytes=600)
    """
    fields = json.loads(line)
    return _KINDS[fields.pop("kind")](**fields)
