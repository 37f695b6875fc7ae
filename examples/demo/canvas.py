"""Appearance of the demo's pictures: colours, type, and a canvas measured in inches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stateful_gpu_loader.errors import MissingDependency

INK = "#17202a"
MUTED = "#6a7380"
FAINT = "#d9dde3"
SAME = "#0b7a75"
"""Colour of our loader, and of results that are equal bit for bit."""
OTHER = "#d9601a"
"""Colour of the other loader, and of results that differ."""
TITLES = {
    "StatefulGPULoader": "StatefulGPULoader",
    "StatefulDataLoader": "torchdata StatefulDataLoader",
}
COLOURS = {"StatefulGPULoader": SAME, "StatefulDataLoader": OTHER}

DOTS_PER_INCH = 150
_TYPE = {
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.linewidth": 0.8,
}


def require_matplotlib() -> None:
    """Check for matplotlib before the training, not after it.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingDependency(
            "matplotlib", needed_for="the demo's pictures", extra="demo"
        ) from error


class Canvas:
    """A white page; the origin is its upper left corner, and all lengths are in inches.

    Args:
        width, height: size of the page.

    Raises:
        MissingDependency: matplotlib is not installed.
    """

    def __init__(self, width: float, height: float) -> None:
        require_matplotlib()
        import matplotlib
        from matplotlib.figure import Figure

        self._context = matplotlib.rc_context
        self.width, self.height = width, height
        with self._context(_TYPE):
            self._figure = Figure(figsize=(width, height), facecolor="white")
            self._page = self._figure.add_axes((0, 0, 1, 1))
        self._page.set_xlim(0, width)
        self._page.set_ylim(height, 0)
        self._page.axis("off")

    def text(
        self,
        left: float,
        height: float,
        text: str,
        *,
        size: float = 11,
        colour: str = INK,
        bold: bool = False,
        align: str = "left",
        on: str = "baseline",
    ) -> None:
        """Draw text of ``size`` points, its baseline or (``on="center"``) middle at ``height``."""
        self._page.text(
            left,
            height,
            text,
            size=size,
            color=colour,
            weight="bold" if bold else "normal",
            ha=align,
            va=on,
            family=_TYPE["font.family"],
        )

    def image(self, left: float, top: float, side: float, pixels: Any) -> None:
        """Draw a square image, uint8 [height, width, 3], with round corners."""
        from matplotlib.patches import FancyBboxPatch

        shown = self._page.imshow(
            pixels,
            extent=(left, left + side, top + side, top),
            interpolation="lanczos",
            aspect="auto",
        )
        frame = FancyBboxPatch(
            (left, top),
            side,
            side,
            boxstyle=f"round,pad=0,rounding_size={side / 14}",
            transform=self._page.transData,
        )
        shown.set_clip_path(frame)
        self._page.set_xlim(0, self.width)
        self._page.set_ylim(self.height, 0)

    def box(self, left: float, top: float, width: float, height: float, colour: str) -> None:
        from matplotlib.patches import Rectangle

        self._page.add_patch(Rectangle((left, top), width, height, color=colour, linewidth=0))

    def plot(self, left: float, top: float, width: float, height: float) -> Any:
        """Return matplotlib axes without upper and right edges."""
        with self._context(_TYPE):
            axes = self._figure.add_axes(
                (
                    left / self.width,
                    1 - (top + height) / self.height,
                    width / self.width,
                    height / self.height,
                )
            )
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(length=0, labelsize=10)
        return axes

    def save(self, path: Path) -> None:
        """Save as PNG without a date, so that equal pictures are equal files."""
        with self._context(_TYPE):
            self._figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None})
