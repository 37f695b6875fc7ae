"""Picture of the simulated cores: images a second over the number of workers."""

from __future__ import annotations

from pathlib import Path

from benchmarks.bench_cores import (
    AUTO,
    IDEAL,
    KINDS,
    OF_DATASET,
    PROCESSES,
    THREADS,
    TORCH,
    WORKERS,
    name_of,
)
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

_COLORS = {
    IDEAL: INK,
    AUTO: OURS_COLOR,
    THREADS: "#b3702e",
    PROCESSES: "#7fb8ca",
    OF_DATASET: "#8a6fb0",
    TORCH: PEER_COLOR,
}


def draw_cores(content: Content, path: Path) -> None:
    """Draw one line for each kind of workers; the ideal is dashed.

    Args:
        content: content of ``cores.json``.
        path: path of the PNG file.
    """
    found = medians_of(content)
    figure = new_figure((9, 4.6))
    axes = figure.add_axes((0.09, 0.22, 0.54, 0.64))
    for kind, color in _COLORS.items():
        points = [(n, found[name]) for n in WORKERS if (name := name_of(kind, n)) in found]
        axes.plot(
            *zip(*points, strict=True),
            color=color,
            label=KINDS[kind],
            linestyle="--" if kind == IDEAL else "-",
            linewidth=2.4 if kind == AUTO else 1.4,
            marker=None if kind == IDEAL else "o",
            markersize=4,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(WORKERS, [str(n) for n in WORKERS])
    axes.set_xlabel("workers", color=INK)
    axes.tick_params(colors=INK, labelsize=9)
    axes.grid(color=FAINT, alpha=0.2)
    hide_spines(axes, "top", "right")
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    words = (
        "Decoding and augmenting are sleeps of 1.5 ms an image; files, headers and batches are "
        f"real. Medians of {content['rounds']} alternating rounds\non {measured_on(content)}."
    )
    write(figure, "Images per second on cores that are simulated", words, path, left=0.02)
