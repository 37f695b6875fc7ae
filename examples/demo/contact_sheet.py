"""Contact sheet: one batch as delivered before a kill and after the resume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from examples.demo.canvas import COLOURS, MUTED, TITLES, Canvas
from examples.demo.experiment import TrainingRun
from examples.demo.loaders import MEAN, STD
from stateful_gpu_loader.errors import LoaderError

GAP = 0.055
"""Space between images, in inches."""
ROW_TITLES = ("before the kill", "after the resume", "difference")


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """The same batch twice."""

    before: torch.Tensor
    """Float32 [n, 3, height, width], as delivered before the kill."""
    after: torch.Tensor
    """The same batch after the resume."""
    targets: torch.Tensor
    """Int64 [n]."""

    @classmethod
    def of(cls, run: TrainingRun) -> Pair:
        """Return the batch that a killed run kept.

        Raises:
            LoaderError: the batch was not delivered twice.
        """
        if len(run.kept) != 2:
            raise LoaderError(
                f"the batch for the contact sheet was delivered {len(run.kept)} times, not twice. "
                "Remedy: look at the return codes, a process was not killed as planned"
            )
        (before, targets), (after, _) = (torch.load(path, weights_only=True) for path in run.kept)
        return cls(before=before, after=after, targets=targets)

    @property
    def num_equal(self) -> int:
        bits = (self.before.view(torch.int32) == self.after.view(torch.int32)).flatten(1)
        return int(bits.all(dim=1).sum())

    def rows(self, chosen: Sequence[int]) -> list[NDArray[np.uint8]]:
        """Return before, after, and absolute difference: uint8 [n, height, width, 3] each."""
        before, after = (_colours(images[list(chosen)]) for images in (self.before, self.after))
        return [_bytes(before), _bytes(after), _bytes((before - after).abs())]

    def one_of_each_class(self, count: int) -> list[int]:
        """Return the places of the first image of each class, at most ``count``."""
        labels = self.targets.tolist()
        return [place for place, label in enumerate(labels) if label not in labels[:place]][:count]


def draw_rows(
    canvas: Canvas, pair: Pair, chosen: Sequence[int], *, left: float, top: float, side: float
) -> None:
    """Draw chosen images of a pair, three to a column, each ``side`` inches wide."""
    for row, images in enumerate(pair.rows(chosen)):
        for column, image in enumerate(images):
            canvas.image(left + column * (side + GAP), top + row * (side + GAP), side, image)


def draw_contact_sheet(pairs: dict[str, Pair], step: int) -> Canvas:
    """Draw all images of the batch of ``step``, one block for each loader."""
    columns, margin, side, header = 16, 0.45, 0.645, 1.2
    lines = max(-(-len(pair.before) // columns) for pair in pairs.values())
    line_height = 3 * (side + GAP) + 0.16
    block_height = 0.62 + lines * line_height
    width = 2 * margin + columns * (side + GAP) - GAP
    canvas = Canvas(width, header + len(pairs) * block_height + 0.1)
    canvas.text(margin, 0.62, f"Batch {step}, delivered twice", size=20, bold=True)
    legend = "From top to bottom: " + ", ".join(ROW_TITLES) + " (black: none)."
    canvas.text(margin, 0.93, legend, size=11.5, colour=MUTED)
    for number, (name, pair) in enumerate(pairs.items()):
        top = header + number * block_height
        canvas.text(margin, top + 0.24, TITLES[name], size=14, bold=True, colour=COLOURS[name])
        canvas.text(width - margin, top + 0.24, equal_images(pair), size=11.5, align="right")
        places = range(len(pair.before))
        for line in range(lines):
            chosen = places[line * columns : (line + 1) * columns]
            line_top = top + 0.4 + line * line_height
            draw_rows(canvas, pair, chosen, left=margin, top=line_top, side=side)
    return canvas


def equal_images(pair: Pair) -> str:
    """Return how many images are identical after the resume."""
    return f"{pair.num_equal} of {len(pair.before)} images identical, bit for bit"


def _colours(images: torch.Tensor) -> torch.Tensor:
    """Undo the normalisation: float [n, height, width, 3] from 0 to 1."""
    mean, std = torch.tensor(MEAN), torch.tensor(STD)
    return (images.permute(0, 2, 3, 1) * std + mean).clamp(0, 1)


def _bytes(colours: torch.Tensor) -> NDArray[np.uint8]:
    array: NDArray[np.uint8] = (colours * 255).round().to(torch.uint8).numpy()
    return array
