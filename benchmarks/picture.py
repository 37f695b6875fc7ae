"""Common parts of all pictures, and the picture of the throughput benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

OURS_COLOR, PEER_COLOR, INK, FAINT = "#1f6f8b", "#b9c2c9", "#22303a", "#6b7780"


def draw_throughput(content: dict[str, Any], path: Path) -> None:
    """Draw horizontal bars of images a second, with the ceiling as a line.

    Args:
        content: content of ``throughput.json``.
        path: path of the PNG file.
    """
    settings = content["settings"]
    found = {measurement["name"]: measurement for measurement in content["measurements"]}
    ceiling = found[settings["ceiling"]]
    bars = sorted(
        (bar for name, bar in found.items() if not name.startswith("decoding")),
        key=lambda bar: bar["median"],
    )
    figure = new_figure((9, 0.5 * len(bars) + 1.5), dpi=150)
    axes = figure.add_axes((0.37, 0.16, 0.60, 0.67))
    for height, bar in enumerate(bars):
        ours = bar["name"].startswith("ours")
        axes.barh(height, bar["median"], height=0.66, color=OURS_COLOR if ours else PEER_COLOR)
        axes.plot(
            [bar["lower_quartile"], bar["upper_quartile"]],
            [height, height],
            color=INK,
            linewidth=1.2,
            solid_capstyle="butt",
        )
        axes.text(
            0.02 * ceiling["median"],
            height,
            f"{bar['median']:,.0f}",
            va="center",
            color="white" if ours else INK,
            fontweight="bold",
        )
    axes.axvline(ceiling["median"], color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.text(
        ceiling["median"],
        len(bars) - 0.42,
        f"{ceiling['label']}: {ceiling['median']:,.0f}",
        ha="right",
        va="bottom",
        color=INK,
        fontsize=9,
    )
    axes.set_yticks(range(len(bars)), [bar["label"] for bar in bars], color=INK)
    axes.set_xlim(0, 1.04 * ceiling["median"])
    axes.set_ylim(-0.6, len(bars) - 0.4)
    axes.set_xticks([])
    axes.tick_params(length=0)
    hide_spines(axes, "top", "right", "bottom")
    axes.spines["left"].set_color(FAINT)
    title = (
        f"Images per second, JPEG files to normalised batches, {settings['num_workers']} workers"
    )
    words = (
        f"{settings['width']}x{settings['height']} JPEG, {settings['mean_bytes'] / 1000:.0f} KB on "
        f"average; random crop to 224x224, flip, float32; batches of {settings['batch_size']}. "
        f"Medians of {content['rounds']} alternating\nrounds (thin line: middle half) on "
        f"{measured_on(content)}."
    )
    write(figure, title, words, path, left=0.02, bottom=0.06)


def new_figure(size: tuple[float, float], dpi: int = 130) -> Any:
    """Return an empty figure; imports matplotlib, which is slow, only here."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=dpi, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def hide_spines(axes: Any, *sides: str) -> None:
    for side in sides:
        axes.spines[side].set_visible(False)


def measured_on(content: dict[str, Any]) -> str:
    machine = content["machine"]
    return f"{machine['cores']} cores of {machine['processor']}, {content['date'][:10]}"


def write(
    figure: Any,
    title: str,
    words: str,
    path: Path,
    *,
    left: float = 0.01,
    top: float = 0.93,
    bottom: float = 0.04,
) -> None:
    """Add the title at the top and the words at the bottom, and write the PNG file."""
    figure.text(left, top, title, color=INK, fontsize=13, fontweight="bold", va="center")
    figure.text(left, bottom, words, color=FAINT, fontsize=8, va="center")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
