"""Writes previewed samples as one HTML page, which shows on hover all that was drawn for each."""

from __future__ import annotations

import base64
import html
import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

from stateful_gpu_loader.tools.previewed import PreviewedSample, Region, legend
from stateful_gpu_loader.tools.sample_picture import picture_of


def write_html(path: str | os.PathLike[str], samples: Sequence[PreviewedSample]) -> None:
    """Write a page without other files: each sample, and on hover what each recipe drew for it.

    Args:
        path: the HTML file; an existing one is replaced.
        samples: at least one.
    """
    lines = "".join(f"<p>{html.escape(line)}</p>" for line in legend(samples))
    figures = "\n".join(map(_figure, samples))
    with open(path, "w", encoding="utf-8") as file:
        file.write(_PAGE.format(number=len(samples), legend=lines, figures=figures))


def _figure(sample: PreviewedSample) -> str:
    file, picture = io.BytesIO(), picture_of(sample)
    picture.save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    title, label = html.escape(sample.title), html.escape(sample.label)
    rows = [(name, parameters_text(numbers) or "-") for name, numbers in sample.parameters]
    if sample.region is not None:
        rows.append(("part taken", _taken(sample.region)))
    if sample.place.stored is not None:
        rows.append(("stored in", sample.place.stored))
    rows += [("note", note) for note in sample.notes]
    table = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(text)}</td></tr>'
        for name, text in rows
    )
    return (
        f'<figure tabindex="0"><img alt="{title}" width="{picture.width}" '
        f'height="{picture.height}" src="data:image/png;base64,{data}">'
        f"<figcaption><b>{label}</b><br>{title}</figcaption><table>{table}</table></figure>"
    )


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Coming batch</title>
<style>
:root {{ color-scheme: light dark; --paper: #fafafa; --card: #fff; --frame: #e5e7eb;
  --ink: #111827; --faint: #4b5563; --line: #9ca3af; }}
@media (prefers-color-scheme: dark) {{ :root {{ --paper: #111827; --card: #1f2937;
  --frame: #374151; --ink: #f3f4f6; --faint: #b6bcc6; --line: #6b7280; }} }}
* {{ box-sizing: border-box; }}
body {{ font: 15px/1.4 system-ui, sans-serif; margin: clamp(8px, 2vw, 24px);
  background: var(--paper); color: var(--ink); }}
h1 {{ font-size: 1.25em; margin: 0 0 .4em; }}
p {{ color: var(--faint); margin: 0 0 .4em; max-width: 50em; }}
main {{ display: flex; flex-wrap: wrap; gap: 12px; margin-top: 1em; padding-bottom: 14em; }}
figure {{ position: relative; margin: 0; padding: 6px; border-radius: 6px; max-width: 100%;
  background: var(--card); box-shadow: 0 1px 2px #0004; }}
figure:hover, figure:focus-within, figure:focus {{ outline: 2px solid var(--line); z-index: 1; }}
img {{ display: block; max-width: 100%; height: auto; background: var(--frame); }}
figcaption {{ width: 0; min-width: 100%; padding-top: 4px; color: var(--faint);
  overflow-wrap: anywhere; }}
figcaption b {{ color: var(--ink); }}
table {{ display: none; position: absolute; left: 0; top: calc(100% - 2px); width: 100%;
  padding: 6px; border-radius: 0 0 6px 6px; background: var(--card);
  box-shadow: 0 4px 12px #0006; outline: 2px solid var(--line); font-size: 14px; }}
figure:hover table, figure:focus table {{ display: table; }}
th {{ text-align: left; padding-right: 1em; vertical-align: top; font-weight: 600; }}
td {{ overflow-wrap: anywhere; }}
</style></head>
<body>
<h1>Coming batch: {number} samples</h1>
{legend}
<p>Point at a sample, or tap it, to see what was drawn for it.</p>
<main>
{figures}
</main>
</body></html>
"""


def parameters_text(parameters: Mapping[str, Any]) -> str:
    """Numbers of one recipe for a person.

    >>> parameters_text({"top": 3, "angle": 1.23456})
    'top 3, angle 1.235'
    """
    return ", ".join(f"{name} {_number(value)}" for name, value in parameters.items())


def _number(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_number, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _taken(region: Region) -> str:
    if region.rectangle is None:
        corners = "; ".join(f"({x:.5g}, {y:.5g})" for x, y in region.corners)
        return f"corners (x, y) {corners}"
    left, top, right, bottom = region.rectangle
    flips = "".join(f", flipped {direction}ly" for direction in region.flips)
    return f"x {left:.6g} to {right:.6g}, y {top:.6g} to {bottom:.6g}{flips}"
