"""What is known to be wrong, so that a run of the fuzzer tells it from what is new.

An entry goes as soon as it is mended: then the fuzzer proves it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fuzz.configurations import Configuration
from tests.fuzz.data import STATEFUL
from tests.fuzz.lives import Life
from tests.fuzz.orders import OWN


def _rewound(c: Configuration, life: Life, player: Any) -> bool:
    at_start = player.loaded is not None and not player.loaded.done
    has_moved = player.was_used or any(action.arguments.get("batches_ago") for action in life)
    return c["data"] in STATEFUL and not c["num_workers"] and has_moved and at_start


def _failed_batches(c: Configuration, life: Life, player: Any) -> bool:
    reaches_back = any(action.arguments.get("batches_ago") for action in life)
    return c.raises and reaches_back and (c.has_state or c.order not in OWN)


def _overtaken_turns(c: Configuration, life: Life, player: Any) -> bool:
    draws = c["batch_transform"] is not None
    return c.is_tied and not c["in_order"] and draws and c["num_workers"] > 0


def _empty_epochs(c: Configuration, life: Life, player: Any) -> bool:
    return c["on_epoch_boundary"] == "next_epoch" and c["drop_last"]


def _read_once(c: Configuration, life: Life, player: Any) -> bool:
    return c["data"] == "once" and player.was_used


KNOWN: dict[str, Callable[[Configuration, Life, Any], bool]] = {
    "a used loader whose object has moved on is rewound to an epoch's start": _rewound,
    "batches_ago where failed batches count, as objects have moved on": _failed_batches,
    "in_order=False over an iterable, with a batch_transform that draws": _overtaken_turns,
    "next_epoch, and an epoch without a whole batch": _empty_epochs,
    "an iterable without state that does not repeat": _read_once,
}


def known(configuration: Configuration, life: Life, player: Any) -> str | None:
    """The name of what is known, or None; the player is the one that failed."""
    for name, fits in KNOWN.items():
        if player is not None and fits(configuration, life, player):
            return name
    return None
