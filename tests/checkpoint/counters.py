"""Small objects with a state, and files of their checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stateful_gpu_loader.checkpoint import Checkpoint

PATTERN = "run_{seq:04d}.json"


class Counter:
    """Counts; refuses negative numbers and None."""

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self.history = [count]

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "history": self.history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # The history changes first, so that a refusal leaves the object half changed.
        self.history = state_dict["history"]
        if state_dict["count"] < 0:
            raise ValueError(f"count = {state_dict['count']} is negative")
        self.count = state_dict["count"]


class OtherCounter(Counter):
    """A counter of another type."""


class Text:
    """State by DALI's pair of methods, without anything else of DALI."""

    def __init__(self, text: str = "") -> None:
        self.text = text

    def get_state(self) -> str:
        return self.text

    def set_state(self, state: str) -> None:
        self.text = state


def collected(**counts: int) -> Checkpoint:
    """Return the states of counters of these names."""
    checkpoint = Checkpoint()
    for name, count in counts.items():
        checkpoint.register(Counter(count), name)
    checkpoint.collect()
    return checkpoint


def loaded(path: Any) -> int:
    """Return the count of the counter named "counter" in the newest file of a pattern."""
    checkpoint = Checkpoint()
    checkpoint.load(path)
    counter = Counter()
    checkpoint.register(counter, "counter")
    return counter.count


def save(path: Path, count: int, keep: int | None = None) -> str:
    return collected(counter=count).save(path, keep=keep)


def fill(folder: Path, *counts: int) -> list[Path]:
    """Write one file for each count, numbered from 0."""
    return [Path(collected(counter=count).save(folder / PATTERN)) for count in counts]
