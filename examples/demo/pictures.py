"""Pictures of the demo: ``resume.png``, and its two halves in full."""

from __future__ import annotations

from pathlib import Path

from examples.demo.canvas import COLOURS, MUTED, TITLES, Canvas
from examples.demo.comparison import Comparison
from examples.demo.contact_sheet import (
    GAP,
    ROW_TITLES,
    Pair,
    draw_contact_sheet,
    draw_rows,
    equal_images,
)
from examples.demo.experiment import Plan, Runs
from examples.demo.loss_curves import STRIP_SPACE, Panel, draw_losses, range_of_losses
from examples.demo.photographs import CREDITS
from examples.demo.report import OURS

_WIDTH, _MARGIN = 12.0, 0.45


def write_pictures(
    folder: Path, plan: Plan, runs: dict[str, Runs], comparisons: dict[str, Comparison]
) -> list[Path]:
    """Draw ``resume.png``, ``contact_sheet.png`` and ``loss_curves.png`` into a folder.

    Raises:
        LoaderError: a process was not killed as planned.
        MissingDependency: matplotlib is not installed.
    """
    pairs = {name: Pair.of(pair.killed) for name, pair in runs.items()}
    pictures = {
        "resume.png": _main_picture(plan, runs, comparisons, pairs),
        "contact_sheet.png": draw_contact_sheet(pairs, plan.kept_step),
        "loss_curves.png": _loss_picture(plan, runs, comparisons),
    }
    for name, canvas in pictures.items():
        canvas.save(folder / name)
    return [folder / name for name in pictures]


def _main_picture(
    plan: Plan, runs: dict[str, Runs], comparisons: dict[str, Comparison], pairs: dict[str, Pair]
) -> Canvas:
    columns, plot_height, gutter, between = 6, 2.6, 1.12, 0.45
    width = (_WIDTH - 2 * _MARGIN - gutter - between * (len(runs) - 1)) / len(runs)
    side = (width - (columns - 1) * GAP) / columns
    images_top = 1.98
    plot_top = images_top + 3 * (side + GAP) + 0.3
    strip_bottom = plot_top + plot_height + STRIP_SPACE
    canvas = Canvas(_WIDTH, strip_bottom + 0.72)
    canvas.text(_MARGIN, 0.68, _headline(comparisons[OURS], len(plan.kill_at)), size=21, bold=True)
    subtitle = (
        f"A network in training on {plan.num_files} JPEG files, ended by SIGKILL in the middle of "
        f"epochs {' and '.join(map(str, plan.killed_epochs))}, resumed from its last checkpoint."
    )
    canvas.text(_MARGIN, 1.04, subtitle, size=11.5, colour=MUTED)

    row_titles = [title.replace(" the ", "\nthe ") for title in ROW_TITLES]
    row_middles = [images_top + row * (side + GAP) + side / 2 for row in range(3)]
    row_titles += ["training\nloss", "batches"]
    row_middles += [plot_top + plot_height / 2, strip_bottom - 0.085]
    for title, middle in zip(row_titles, row_middles, strict=True):
        canvas.text(_MARGIN, middle, title, colour=MUTED, on="center")

    for number, name in enumerate(runs):
        left = _MARGIN + gutter + number * (width + between)
        colour, pair = COLOURS[name], pairs[name]
        canvas.text(left, images_top - 0.4, TITLES[name], size=15, bold=True, colour=colour)
        again = f"batch {plan.kept_step} again: {equal_images(pair)}"
        canvas.text(left, images_top - 0.14, again)
        chosen = pair.one_of_each_class(columns)
        draw_rows(canvas, pair, chosen, left=left, top=images_top, side=side)
        panel = Panel(
            left=left,
            top=plot_top,
            width=width,
            height=plot_height,
            losses=range_of_losses(runs),
        )
        draw_losses(canvas, panel, name, plan, runs[name], comparisons[name])
        canvas.text(left, strip_bottom + 0.25, _batches(comparisons[name]))
    canvas.text(_MARGIN, canvas.height - 0.15, CREDITS, size=7.5, colour=MUTED)
    return canvas


def _loss_picture(plan: Plan, runs: dict[str, Runs], comparisons: dict[str, Comparison]) -> Canvas:
    left, height, header = 1.0, 2.9, 0.75
    block_height = header + height + STRIP_SPACE + 0.25
    canvas = Canvas(_WIDTH, len(runs) * block_height + 0.2)
    for number, name in enumerate(runs):
        panel = Panel(
            left=left,
            top=number * block_height + header,
            width=_WIDTH - left - _MARGIN,
            height=height,
            losses=range_of_losses(runs),
        )
        baseline, right = panel.top - 0.18, panel.left + panel.width
        canvas.text(left, baseline, TITLES[name], size=15, bold=True, colour=COLOURS[name])
        canvas.text(right, baseline, _batches(comparisons[name]), align="right")
        canvas.text(0.25, panel.top + height / 2, "training\nloss", colour=MUTED, on="center")
        draw_losses(canvas, panel, name, plan, runs[name], comparisons[name])
    return canvas


def _headline(ours: Comparison, num_kills: int) -> str:
    outcome = (
        "the same run, bit for bit"
        if ours.same_run
        else f"NOT the same run, {len(ours.differing)} batches differ"
    )
    times = {1: "once", 2: "twice"}.get(num_kills, f"{num_kills} times")
    return f"Killed {times}, resumed on other workers: {outcome}"


def _batches(comparison: Comparison) -> str:
    weights = "equal" if comparison.equal_weights else "different"
    num_steps = comparison.batches - comparison.again + len(comparison.missing)
    return f"{len(comparison.differing)} of {num_steps} batches differ, final weights {weights}"
