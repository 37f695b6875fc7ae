"""Picture of docs/scale.md: growth of a rank's costs, and rates from object storage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import bench_object_storage as storage
from benchmarks import bench_scale as scale
from benchmarks.bench_scale import Case, states_name
from benchmarks.markdown import Content, medians_of
from benchmarks.picture import (
    FAINT,
    INK,
    OURS_COLOR,
    PEER_COLOR,
    hide_spines,
    measured_on,
    new_figure,
    write,
)

_COLORS = (OURS_COLOR, "#b3702e", PEER_COLOR, "#7fb8ca")

Line = tuple[str, Sequence[int], Callable[[int], str]]
"""Label, places of the points, and the name of the measurement at each."""


def draw_scale(content: Content, path: Path) -> None:
    """Draw four panels: over samples, ranks, shards, and the states of all ranks.

    Args:
        content: content of ``scale.json``.
        path: path of the PNG file.
    """
    found = medians_of(content)
    orders = {**scale.ORDERS, scale.MIXTURE: "mixture of 1,000 datasets"}
    panels: tuple[tuple[str, str, list[Line]], ...] = (
        (
            f"microseconds a step of {scale.BATCH_SIZE}",
            f"samples, {scale.RANKS:,} ranks",
            [
                (label, scale.LENGTHS, lambda n, kind=kind: Case(kind=kind, n=n).name(scale.STEP))
                for kind, label in scale.ORDERS.items()
            ],
        ),
        (
            f"microseconds a step of {scale.BATCH_SIZE}",
            "ranks, $10^{11}$ samples",
            [
                (
                    label,
                    scale.NUMS_RANKS,
                    lambda ranks, kind=kind: Case(
                        kind=kind,
                        ranks=ranks,
                        parts=scale.DATASETS if kind == scale.MIXTURE else 1,
                    ).name(scale.STEP),
                )
                for kind, label in orders.items()
            ],
        ),
        (
            "milliseconds",
            f"shards, {scale.RANKS:,} ranks",
            [
                (
                    what,
                    scale.NUMS_SHARDS,
                    lambda n, what=what: Case(kind=scale.LANES, n=n).name(what),
                )
                for what in (scale.CONSTRUCTION, scale.FIRST, scale.LOADING)
            ],
        ),
        (
            "seconds to merge",
            "ranks",
            [
                (
                    label.replace("map-style data, ", ""),
                    scale.NUMS_RANKS[1:],
                    lambda ranks, whose=whose: states_name(scale.MERGING, whose, ranks),
                )
                for whose, label in scale.STATES_OF.items()
            ],
        ),
    )
    figure = new_figure((13, 3.9))
    for place, (title, below, lines) in enumerate(panels):
        axes = figure.add_axes((0.045 + 0.245 * place, 0.24, 0.19, 0.56))
        for (label, at, name), color in zip(lines, _COLORS, strict=False):
            points = [(x, found[name(x)]) for x in at if name(x) in found]
            if points:
                xs, ys = zip(*points, strict=True)
                axes.plot(xs, ys, marker="o", markersize=4, color=color, label=label)
        _style(axes, title, below)
        axes.set_xscale("log")
        axes.set_yscale("log")
        if axes.lines:
            axes.set_ylim(bottom=axes.get_ylim()[0] / 40)  # room for the legend
            axes.legend(fontsize=6.5, frameon=False, loc="lower right", labelcolor=INK)
    _write(figure, "What one rank pays", content, path)


def draw_object_storage(content: Content, path: Path) -> None:
    """Draw each way's rate relative to local files, by latency.

    Args:
        content: content of ``object_storage.json``.
        path: path of the PNG file.
    """
    ratios = {found["of"]: found["ratio"] for found in content["comparisons"]}
    figure = new_figure((8, 3.6))
    axes = figure.add_axes((0.08, 0.22, 0.88, 0.58))
    width = 6.0
    for number, (way, label) in enumerate(storage.WAYS.items()):
        for place, latency in enumerate(storage.LATENCIES):
            ratio = ratios.get(storage.rate_name(way, latency))
            if ratio is None:
                continue
            x = place * 4 * width + number * width
            axes.bar(
                x,
                ratio["median"],
                width=0.9 * width,
                color=_COLORS[number],
                label=label.replace("`", "") if place == 0 else None,
            )
            axes.plot([x, x], [ratio["low"], ratio["high"]], color=INK, linewidth=1)
            axes.text(x, 0.03, f"{ratio['median']:.0%}", ha="center", color="white", fontsize=8)
    axes.axhline(storage.AIM, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    _style(axes, "rate beside that from local files; dashed: the aim", "latency of every request")
    ticks = [place * 4 * width + width for place in range(len(storage.LATENCIES))]
    axes.set_xticks(ticks, [f"{latency} ms" for latency in storage.LATENCIES])
    if axes.patches:
        axes.legend(fontsize=7, frameon=False, ncols=3, loc="upper center", labelcolor=INK)
    axes.set_ylim(0, 1.5)
    _write(figure, "Tars in object storage", content, path)


def _style(axes: Any, title: str, below: str) -> None:
    axes.set_title(title, fontsize=8.5, color=INK, loc="left")
    axes.set_xlabel(below, fontsize=8, color=INK)
    axes.tick_params(labelsize=7, colors=FAINT)
    axes.minorticks_off()
    hide_spines(axes, "top", "right")
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)


def _write(figure: Any, title: str, content: Content, path: Path) -> None:
    words = f"Medians of {content['rounds']} rounds on {measured_on(content)}. "
    write(figure, title, words + " ".join(content["notes"]), path)
