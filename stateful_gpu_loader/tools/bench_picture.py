"""Draws a report: the speed with each number of workers, and the time in each stage."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from stateful_gpu_loader.errors import MissingDependency
from stateful_gpu_loader.tools.bench import (
    CONVERTED,
    OURS,
    STAGES,
    BenchReport,
    Rate,
    analysed,
)

_INK = "#22303a"
_LOADERS = {OURS: "#1f6f8b", CONVERTED: "#e6a756"}
_COLOURS = dict(zip(STAGES, ("#9bc1bc", "#1f6f8b", "#e6a756", "#8d6a9f", "#b9c2c9"), strict=True))


def draw(report: BenchReport, path: Path) -> None:
    """Draw a report into a file; the ending of its name sets the format.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "matplotlib", needed_for="a picture of the report", extra="cli"
        ) from error
    figure = Figure(figsize=(11, 4.6), dpi=140, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    speed, parts = figure.subplots(1, 2)
    names = dict.fromkeys(rate.loader for rate in report.rates)
    _draw_speed(speed, [[rate for rate in report.rates if rate.loader == name] for name in names])
    _draw_stages(parts, analysed(report.rates))
    for axes in (speed, parts):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel("num_workers", color=_INK)
    figure.suptitle(textwrap.fill(report.recommendation, 110), color=_INK, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _draw_speed(axes: Any, loaders: list[list[Rate]]) -> None:
    width = 0.8 / max(2, len(loaders))
    for i, rates in enumerate(loaders):
        bars = axes.bar(
            [place + i * width for place in range(len(rates))],
            [rate.samples_per_second for rate in rates],
            width=width,
            color=_LOADERS[rates[0].loader],
            yerr=[
                [rate.samples_per_second - min(rate.rounds) for rate in rates],
                [max(rate.rounds) - rate.samples_per_second for rate in rates],
            ],
            error_kw={"ecolor": _INK, "elinewidth": 1},
            label=rates[0].loader,
        )
        axes.bar_label(bars, fmt="{:,.0f}", color=_INK, fontsize=9)
    middle = width * (len(loaders) - 1) / 2
    numbers = [str(rate.num_workers) for rate in loaders[0]]
    axes.set_xticks([place + middle for place in range(len(numbers))], numbers)
    axes.set_title(
        "Samples per second (lines: slowest to fastest round)", color=_INK, loc="left", fontsize=11
    )
    axes.margins(y=0.2)
    if len(loaders) > 1:
        _explain(axes, num_columns=len(loaders))


def _draw_stages(axes: Any, ours: list[Rate]) -> None:
    names = [name for name in STAGES if any(name in rate.stages for rate in ours)]
    bottom = [0.0] * len(ours)
    for name in names:
        heights = [1e6 * rate.stages.get(name, 0.0) for rate in ours]
        axes.bar(
            range(len(ours)), heights, bottom=bottom, width=0.7, color=_COLOURS[name], label=name
        )
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_xticks(range(len(ours)), [str(rate.num_workers) for rate in ours])
    axes.set_title("Microseconds of work per sample", color=_INK, loc="left", fontsize=11)
    _explain(axes, num_columns=len(names))


def _explain(axes: Any, *, num_columns: int) -> None:
    """Add a legend below the axes."""
    axes.legend(
        frameon=False,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.13),
        ncols=num_columns,
        fontsize=9,
        columnspacing=1.2,
    )
