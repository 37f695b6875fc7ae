"""Comparison with the batches of an undisturbed run, and check of resources for growth."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.job import DRAWN_TWICE, told_of
from tests.chaos.streams import STREAMS, end_epoch

SLACK = {"resident MiB": 24, "file descriptors": 4}
"""Allowed growth of each resource until the end of a life; 0 for a resource not listed.

An interrupt between the system call and Python's assignment loses a file descriptor.
"""
WARM = 1
"""Epochs of a life before its resources are first recorded."""
FEWEST = 12
"""Fewest epochs of a life that is judged for growth. In shorter ones, killed workers hide it."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Findings in the logs of all lives of one stream."""

    compared: int
    """Number of delivered batches that were compared, including repeats after a checkpoint."""
    reached: int
    """Number of different batches: the length of the stream."""
    epochs: int
    differences: tuple[str, ...]
    events: Counter[str]
    """Number of the job's own faults by kind."""
    growth: dict[str, tuple[int, int]]
    """Each resource after warm-up and at the end, in the life in which it grew most."""
    judged: int
    """Number of lives that were long enough to be judged."""
    slack: Mapping[str, int]
    """Allowed growth of each resource."""

    @property
    def grown(self) -> dict[str, tuple[int, int]]:
        """Return the resources that grew beyond their allowance."""
        return {
            name: (first, last)
            for name, (first, last) in self.growth.items()
            if last - first > self.slack.get(name, 0)
        }


def verdict_on(
    stream: str, folder: Path, logs: list[Path], slack: Mapping[str, int] = SLACK
) -> Verdict:
    """Read the logs of all lives, and compare them with a run without workers or interruptions."""
    lives = [list(_lines(log)) for log in logs]
    differences: list[str] = []
    delivered: list[list[Any]] = []
    """All log entries of each batch, by its number."""
    events: Counter[str] = Counter()
    for number, life in enumerate(lives):
        expected = None
        for kind, value in life:
            if kind == "resumed":
                expected = value
            elif kind == "batch":
                if value[0] != expected or expected > len(delivered):
                    differences.append(f"life {number}: batch {value[0]}, not {expected}")
                delivered += [[] for _ in range(value[0] + 1 - len(delivered))]
                delivered[value[0]].append(value)
                expected = value[0] + 1
            elif kind == DRAWN_TWICE:
                differences.append(f"life {number}: {kind}")
            elif kind != "used":
                events[kind] += 1
    calm = undisturbed(stream, folder)
    epochs = 0
    for told, wanted in zip(delivered, calm, strict=False):
        epochs = wanted[1]
        differences += [f"told {each}, not {wanted}" for each in told if each != wanted]
        if not told:
            differences.append(f"batch {wanted[0]} never came")
    growths = list(filter(None, map(_growth, lives)))
    return Verdict(
        compared=sum(map(len, delivered)),
        reached=len(delivered),
        epochs=epochs,
        differences=tuple(differences),
        events=events,
        growth={
            name: max((g[name] for g in growths), key=lambda pair: pair[1] - pair[0])
            for name in (growths[0] if growths else {})
        },
        judged=len(growths),
        slack=slack,
    )


def _lines(log: Path) -> Iterator[tuple[str, Any]]:
    """Read the log. A kill may have cut off its last line."""
    for line in log.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield from json.loads(line).items()


def undisturbed(stream: str, folder: Path) -> Iterator[list[Any]]:
    """Yield the log entries of an undisturbed loader without workers."""
    loader, step = STREAMS[stream](folder), 0
    while True:
        for batch in loader:
            yield told_of(step, loader, batch)
            step += 1
        end_epoch(loader)


def _growth(life: list[tuple[str, Any]]) -> dict[str, tuple[int, int]] | None:
    """Return each resource's medians over the first and the last third of the epochs."""
    used = [value for kind, value in life if kind == "used"][WARM:]
    if len(used) < FEWEST:
        return None
    third = len(used) // 3
    return {
        name: (
            statistics.median_high([each[name] for each in used[:third]]),
            statistics.median_low([each[name] for each in used[-third:]]),
        )
        for name in used[0]
    }
