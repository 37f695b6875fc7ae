"""A loader's life: a sequence of actions, each a name and its arguments.

Any part of a life is a life: an action without a meaning in its place does nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.configurations import PROCESSES_OF_TWO, Configuration
from tests.fuzz.data import FUNCTIONS, IMAGES, MAPS
from tests.fuzz.orders import BATCH_SAMPLERS

MOST_PLACES = 20_000
"""Latest bytecode for an interrupt: later than a first ``next()`` ends."""


@dataclass(frozen=True)
class Action:
    """One of :class:`~tests.fuzz.player.Player`'s methods."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.name}({given})"


Life = list[Action]


def drawn_life(configuration: Configuration, rng: random.Random) -> Life:
    """Draw a life: some batches, then saves, breaks, kills and resumes, with batches after each."""
    life = [_save(rng)] if rng.random() < 0.4 else []
    life.append(_take(rng))
    for _ in range(rng.randint(2, 6)):
        life.append(_happening(configuration, rng))
        life.append(_take(rng))
    return [*life, Action("take", {"batches": 12})]


def _happening(c: Configuration, rng: random.Random) -> Action:
    weights = {
        "save": 6,
        "load": 8,
        "leave": 1,
        "kill": 2,
        "set_epoch": 1,
        "refuse": 1,
        "redeal": 1,
    }
    if not (c.raises or c["data"] == "once" or c.order == "in place"):
        # An interrupt may replace an exception, and samples that are read only once are lost.
        weights["interrupt"] = 6
    (name,) = rng.choices(list(weights), list(weights.values()))
    if name == "save":
        return _save(rng)
    if name == "load":
        into = rng.choice(["same", "fresh", "used"])
        return Action(
            name,
            {
                "which": rng.randrange(4),
                "into": into,
                "through": rng.choice(["as it is", "json", "torch.save"]),
                "used": rng.choice([0, 1, 2, 20]),
                "keep_iterator": rng.random() < 0.5,
                "in_a_cycle": rng.random() < 0.5,
                "changes": {} if into == "same" else allowed_changes(c, rng),
            },
        )
    if name == "interrupt":
        by = rng.choice(["line", "opcode"])
        return Action(name, {"at": int(MOST_PLACES ** rng.random()), "by": by})
    if name == "kill":
        return Action(name, {"worker": rng.randrange(3)})
    if name == "set_epoch":
        return Action(name, {"epoch": rng.randrange(3)})
    if name == "refuse":
        return Action(name, {"changes": forbidden_change(c, rng), "after": rng.choice([0, 1, 2])})
    if name == "redeal":
        sizes = {"batch_size": rng.choice([1, 3, 5]), "num_replicas": rng.choice([1, 2])}
        return Action(name, {"which": rng.randrange(4), "changes": sizes})
    return Action(name, {"in_a_cycle": rng.random() < 0.5})


def _take(rng: random.Random) -> Action:
    return Action("take", {"batches": rng.choice([0, 1, 1, 2, 3, 5, 8])})


def _save(rng: random.Random) -> Action:
    return Action("save", {"batches_ago": rng.choice([0, 0, 0, 1, 2, 5])})


def allowed_changes(c: Configuration, rng: random.Random) -> dict[str, Any]:
    """Return options under which the stream must continue unchanged."""
    changes: dict[str, Any] = {"prefetch_factor": rng.choice([None, 1, 4])}
    if not c.is_tied:
        changes["num_workers"] = rng.choice([0, 0, c["num_workers"], 1, 2])
        changes["persistent_workers"] = rng.random() < 0.3
        if c["data"] in IMAGES:
            kinds = ["auto", "process", "thread", PROCESSES_OF_TWO]
            changes["worker_type"] = rng.choice(kinds[: 2 if c["data"] in FUNCTIONS else 4])
    if c.is_flat and rng.random() < 0.5:
        if c.has_own_order:
            changes["batch_size"] = rng.choice([1, 2, 3, 4, 5])
            ranks = rng.choice([1, 1, 2, 3])
            if c["seed"] is not None:  # all ranks need the same one
                changes["num_replicas"] = ranks
        elif not (c.order == "lazy" or c["drop_last"] or c["snapshot_every_n_steps"] != 1):
            changes["batch_size"] = rng.choice([1, 2, 3, 4, 5])
    changed = rng.sample(sorted(changes), rng.randint(0, len(changes)))
    return {name: changes[name] for name in changed}


def forbidden_change(c: Configuration, rng: random.Random) -> dict[str, Any]:
    """Return an option under which a state must be refused."""
    changes: dict[str, Any] = {}
    if c["seed"] is not None:
        changes["seed"] = 5
    if c["batch_size"] is not None and c.order not in BATCH_SAMPLERS:
        changes["drop_last"] = not c["drop_last"]
    if c["data"] not in IMAGES and not c["bad"]:
        changes["transform"] = None if c["transform"] else "noise"
    changes["batch_transform"] = None if c["batch_transform"] else "blend"
    if c["data"] in MAPS and c.has_own_order:
        changes["n"] = c["n"] + 2
        changes["order"] = "sequential" if c.order != "sequential" else None
    elif c["data"] in MAPS:
        changes["order"] = "lazy" if c.order in ("list", "listed batches") else "list"
    elif c["data"] not in FUNCTIONS and c.is_tied and c["data"] != "once":
        changes["num_workers"] = c["num_workers"] + 1
    name = rng.choice(sorted(changes))
    return {name: changes[name]}
