"""Picture of the peers: a column of bars for each figure, ours in colour, the best marked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.bench_peers import STATE
from benchmarks.markdown import Content
from benchmarks.peers.roster import OURS
from benchmarks.peers_table import (
    best_of,
    columns_of,
    measured_loaders,
    text_of,
    value_of,
    verdicts_of,
)
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

_NO = "#b3402e"
_OURS_BAR = "#7fb8ca"
"""Light enough for the figure on it to be readable."""
_LABELS, _VERDICTS, _TOP, _BOTTOM = 0.17, 0.13, 0.80, 0.10


def draw_peers(content: Content, path: Path) -> None:
    """Draw one row for each loader, with the first number of workers.

    Bars of a column have the same scale; a star marks the best of its column.

    Args:
        content: content of ``peers.json``.
        path: path of the PNG file.
    """
    workers = content["settings"]["num_workers"][0]
    loaders, columns = measured_loaders(content)[::-1], columns_of(content)
    figure = new_figure((14, 0.42 * len(loaders) + 2.0))
    width = (1 - _LABELS - _VERDICTS - 0.01) / len(columns)
    for place, column in enumerate(columns):
        axes = figure.add_axes((_LABELS + place * width, _BOTTOM, 0.86 * width, _TOP - _BOTTOM))
        values = [value_of(content, loader, column, workers) for loader in loaders]
        known = [value for value in values if value is not None]
        longest, best = max(known, default=1.0) or 1.0, best_of(content, column, workers)
        for height, (loader, value) in enumerate(zip(loaders, values, strict=True)):
            text = text_of(content, loader, column, workers)
            is_limit = value is None and text.startswith(">")
            if value is not None or is_limit:
                color = _OURS_BAR if loader["name"] == OURS else PEER_COLOR
                share = 1.0 if value is None else value / longest
                axes.barh(height, share, height=0.66, color=color, alpha=0.45 if is_limit else 1.0)
            mark = " ★" if best is not None and text == column.show(best) else ""
            faint = column.what == STATE and not loader["has_state"]
            axes.text(
                0.03,
                height,
                text + mark,
                va="center",
                fontsize=8,
                color=FAINT if faint else INK,
                fontweight="bold" if loader["name"] == OURS or mark else "normal",
            )
        better = "more is better" if column.more_is_better else "less is better"
        axes.set_title(f"{_wrapped(column.head)}\n{better}", fontsize=8, color=INK, loc="left")
        _clear(axes, len(loaders))
        axes.set_xlim(0, 1.02)
        if place == 0:
            axes.set_yticks(range(len(loaders)), [loader["label"] for loader in loaders], color=INK)
    axes = figure.add_axes((1 - _VERDICTS, _BOTTOM, _VERDICTS - 0.01, _TOP - _BOTTOM))
    for height, loader in enumerate(loaders):
        for x, verdict in zip((0.05, 0.55), verdicts_of(loader, workers), strict=True):
            shown = verdict.partition(",")[0]
            color = OURS_COLOR if shown == "yes" else _NO
            axes.text(x, height, shown, va="center", fontsize=9, color=color, fontweight="bold")
    axes.set_title("resumed exactly?\nsamples     pixels", fontsize=8, color=INK, loc="left")
    _clear(axes, len(loaders))
    axes.set_xlim(0, 1)
    words = (
        f"Medians of {content['rounds']} alternating rounds on {measured_on(content)}, load "
        f"{content['machine']['load_average_before']:.1f}. "
        "★ the best of a column; pale: more than the limit; none: no state, so it begins again."
    )
    write(figure, f"This loader beside others, {workers} workers", words, path, top=0.95)


def _clear(axes: Any, rows: int) -> None:
    axes.set_ylim(-0.6, rows - 0.4)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.tick_params(length=0)
    hide_spines(axes, "top", "right", "bottom", "left")


def _wrapped(head: str) -> str:
    """Break a heading into two lines of similar length.

    >>> _wrapped("first batch at 90% of")
    'first batch\\nat 90% of'
    """
    words, lines = head.split(" "), [""]
    for word in words:
        if len(lines[0]) >= len(head) / 2 and len(lines) == 1:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)
