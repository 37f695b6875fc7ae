"""Loss curves of an undisturbed and a killed run, with a cell for every batch below."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from examples.demo.canvas import COLOURS, FAINT, INK, MUTED, OTHER, SAME, Canvas
from examples.demo.comparison import Comparison
from examples.demo.events import Step
from examples.demo.experiment import Plan, Runs

_STRIP_HEIGHT = 0.17
_STRIP_GAP = 0.32
STRIP_SPACE = _STRIP_GAP + _STRIP_HEIGHT
"""Height of the cells below the axes, in inches."""
_HEADROOM, _FOOTROOM = 1.16, 0.75
"""Factors from the highest and lowest loss to the ends of the axis, as room for labels."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Place of a panel, in inches; :data:`STRIP_SPACE` comes below its height."""

    left: float
    top: float
    width: float
    height: float
    losses: tuple[float, float]
    """Lowest and highest loss of all panels that share an axis."""


def range_of_losses(runs: dict[str, Runs]) -> tuple[float, float]:
    """Return the lowest and highest loss of all runs, so that panels can share their axis."""
    losses = [
        step.loss_value
        for pair in runs.values()
        for run in (pair.undisturbed, pair.killed)
        for step in run.steps
    ]
    return min(losses), max(losses)


def draw_losses(
    canvas: Canvas, panel: Panel, name: str, plan: Plan, runs: Runs, comparison: Comparison
) -> None:
    """Draw the panel of one loader."""
    axes = canvas.plot(panel.left, panel.top, panel.width, panel.height)
    axes.set_xlim(-0.5, plan.num_steps - 0.5)
    lowest, highest = panel.losses
    axes.set_ylim(_FOOTROOM * lowest, _HEADROOM * highest)
    axes.set_xticks([])
    axes.set_yticks([tick for tick in (0.5, 1, 1.5, 2) if tick > _FOOTROOM * lowest])
    axes.yaxis.grid(True, color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.plot(
        *_curve(runs.undisturbed.steps),
        color="#bcc4ce",
        linewidth=7,
        solid_capstyle="round",
        solid_joinstyle="round",
        label="undisturbed",
    )
    for number, attempt in enumerate(runs.killed.attempts):
        axes.plot(
            *_curve(attempt.of(Step)),
            color=COLOURS[name],
            linewidth=1.8,
            solid_joinstyle="round",
            label=None if number else "killed and resumed",
        )
    _mark_processes(axes, runs)
    _label_epochs(axes, plan)
    legend = axes.legend(
        loc="upper right",
        bbox_to_anchor=(1.01, 0.93),
        facecolor="white",
        edgecolor="white",
        framealpha=1,
        fontsize=10.5,
        labelcolor=INK,
        handlelength=1.5,
        labelspacing=0.35,
        ncols=2,
        columnspacing=1.2,
    )
    legend.set_zorder(5)
    strip_top = panel.top + panel.height + _STRIP_GAP
    _draw_strip(canvas, plan, comparison, left=panel.left, top=strip_top, width=panel.width)


def _curve(steps: list[Step]) -> tuple[list[int], list[float]]:
    return [step.step for step in steps], [step.loss_value for step in steps]


def _mark_processes(axes: Any, runs: Runs) -> None:
    """Mark the death and start of each process, and its number of workers above its steps."""
    killed, resumed = [], []
    attempts = [attempt for attempt in runs.killed.attempts if attempt.of(Step)]
    for number, attempt in enumerate(attempts):
        first, last = attempt.of(Step)[0], attempt.of(Step)[-1]
        if number:
            resumed.append(first)
        if attempt.killed_at is not None:
            killed.append(last)
            axes.axvline(last.step, color=MUTED, linewidth=0.8, dashes=(3, 2.5), zorder=1)
        start = attempts[number - 1].of(Step)[-1].step if number else first.step
        workers = f"{attempt.num_workers} worker{'s' * (attempt.num_workers != 1)}"
        axes.text(
            (start + last.step) / 2,
            0.96,
            workers,
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="center",
            size=10,
            color=MUTED,
        )
    marks = (
        (killed, "SIGKILL", {"marker": "X", "markersize": 10, "color": INK}),
        (resumed, "resumed", {"marker": "o", "markersize": 6.5, "color": "white"}),
    )
    for steps, label, look in marks:
        edge = "white" if label == "SIGKILL" else INK
        axes.plot(
            *_curve(steps), linestyle="none", markeredgecolor=edge, label=label, zorder=4, **look
        )


def _label_epochs(axes: Any, plan: Plan) -> None:
    for epoch in range(plan.num_epochs):
        start = epoch * plan.steps_per_epoch - 0.5
        if epoch:
            axes.axvline(start, ymax=0.04, color=MUTED, linewidth=0.8)
        axes.text(
            start + plan.steps_per_epoch / 2,
            -0.04,
            f"epoch {epoch}",
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="top",
            size=10.5,
            color=MUTED,
        )


def _draw_strip(
    canvas: Canvas, plan: Plan, comparison: Comparison, *, left: float, top: float, width: float
) -> None:
    """Draw a cell for each batch: one colour if it equals the undisturbed run's, else another."""
    cell = width / plan.num_steps
    for step in range(plan.num_steps):
        colour = OTHER if step in comparison.differing else SAME
        canvas.box(left + step * cell, top, cell - 0.018, _STRIP_HEIGHT, colour)
