"""Figures of an experiment: a table and a verdict for readers, JSON for programs."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from examples.demo.comparison import Comparison
from examples.demo.events import Step
from examples.demo.experiment import Plan, Runs, TrainingRun

OURS = "StatefulGPULoader"

_ROWS: tuple[tuple[str, Callable[[Comparison], str]], ...] = (
    ("batches compared with the undisturbed run", lambda it: str(it.batches)),
    ("  never delivered", lambda it: str(len(it.missing))),
    ("  other samples or another order", lambda it: str(len(it.other_labels))),
    ("  other pixels", lambda it: str(len(it.other_pixels))),
    ("  another loss", lambda it: str(len(it.other_losses))),
    ("final weights equal bit for bit", lambda it: "yes" if it.equal_weights else "NO"),
    ("return codes of its processes", lambda it: _list(it.returncodes)),
    ("killed at batch", lambda it: _list(step for step in it.killed_at if step is not None)),
    ("resumed at batch", lambda it: _list(it.resumed_at)),
    ("workers", lambda it: _list(it.workers, " -> ")),
    ("size of the loader's state, pickled", lambda it: f"{it.state_bytes:,} bytes"),
    (
        "time to the first batch after a resume",
        lambda it: _list(f"{1000 * seconds:.0f} ms" for seconds in it.seconds_to_first_batch),
    ),
)


def table(comparisons: dict[str, Comparison]) -> str:
    """Return a table with a column for each loader.

    Batches trained again after a resume are compared each time, but a step that differs counts
    once.
    """
    columns = [[name, *(cell(it) for _, cell in _ROWS)] for name, it in comparisons.items()]
    widths = [max(map(len, column)) for column in columns]
    labels = ["", *(label for label, _ in _ROWS)]
    label_width = max(map(len, labels))
    lines = []
    for label, *cells in zip(labels, *columns, strict=True):
        figures = "   ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        lines.append(f"{label.ljust(label_width)}   {figures}")
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(lines)


def verdict(comparison: Comparison) -> str:
    """Return one sentence about our loader."""
    if comparison.same_run and comparison.killed_as_planned:
        kills = len(comparison.returncodes) - 1
        return (
            f"EXACT: killed {kills} times, resumed on {_list(comparison.workers[1:], ' and ')} "
            f"workers, and all {comparison.batches} batches, their losses and the final weights "
            "are those of the undisturbed run, bit for bit."
        )
    if not comparison.killed_as_planned:
        return (
            "NOT SHOWN: the processes were not killed as planned, their return codes are "
            f"{_list(comparison.returncodes)}."
        )
    return (
        f"NOT EXACT: {len(comparison.differing)} batches differ from the undisturbed run, the "
        f"final weights are {'equal' if comparison.equal_weights else 'different'}."
    )


def exit_status(comparisons: dict[str, Comparison]) -> int:
    """Return 0 if our killed run equals the undisturbed one and all kills succeeded, else 1."""
    killed = all(comparison.killed_as_planned for comparison in comparisons.values())
    return 0 if killed and comparisons[OURS].same_run else 1


def as_json(
    plan: Plan, runs: dict[str, Runs], comparisons: dict[str, Comparison]
) -> dict[str, Any]:
    """Return all figures and records with versions and machine, without paths or host names."""
    return {
        "versions": {
            "python": platform.python_version(),
            **{
                package: version(package)
                for package in ("stateful_gpu_loader", "torch", "torchvision", "torchdata")
            },
        },
        "machine": {"processor": platform.machine(), "cores": os.cpu_count()},
        "plan": {**asdict(plan), "num_files": plan.num_files, "num_steps": plan.num_steps},
        "exact": exit_status(comparisons) == 0,
        "loaders": {
            name: {
                **asdict(comparison),
                "undisturbed": _records(runs[name].undisturbed),
                "killed": _records(runs[name].killed),
            }
            for name, comparison in comparisons.items()
        },
    }


def _records(run: TrainingRun) -> list[list[dict[str, Any]]]:
    """Return the steps of each process."""
    return [
        [{**asdict(step), "loss_value": step.loss_value} for step in attempt.of(Step)]
        for attempt in run.attempts
    ]


def _list(values: Any, separator: str = ", ") -> str:
    return separator.join(map(str, values))
