"""The picture of what scaled_decoding=True does: ``python -m benchmarks.scaled_picture``."""

from __future__ import annotations

import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.photographs import installed_photographs
from benchmarks.picture import INK, new_figure, write
from stateful_gpu_loader.decoders import make_decoder, probe
from stateful_gpu_loader.decoders.decoder import Box
from stateful_gpu_loader.decoders.scaled import ScaledDecoder, scale_of
from stateful_gpu_loader.transforms.geometry.resize import resize

PICTURE = Path(__file__).parent.parent / "docs" / "scaled-decoding.png"
QUALITY = 90
AMPLIFIED = 4


class Crop(NamedTuple):
    """A part of a photograph, and the side in pixels of the square that it is resized to."""

    photograph: str
    box: Box
    side: int


CROPS = (
    Crop("coffee", (5, 110, 390, 390), 190),
    Crop("astronaut", (0, 40, 440, 440), 108),
    Crop("hubble_deep_field", (60, 80, 780, 780), 96),
)
"""One crop for each scale: a half, a quarter and an eighth."""


def main() -> None:
    """Draw the picture."""
    draw_scaled(PICTURE)


def draw_scaled(path: Path) -> None:
    """Draw one row for each crop: decoded whole, at a smaller scale, and their difference.

    Args:
        path: of the PNG file.
    """
    titles = ("decoded whole", "scaled_decoding=True", f"difference, {AMPLIFIED} times")
    figure = new_figure((9, 10))
    for row, crop in enumerate(CROPS):
        whole, scaled = decoded(crop)
        difference = scaled.float() - whole.float()
        amplified = (128 + AMPLIFIED * difference).clamp(0, 255).to(torch.uint8)
        for column, image in enumerate((whole, scaled, amplified)):
            axes = figure.add_axes((0.06 + 0.31 * column, 0.645 - 0.283 * row, 0.3, 0.27))
            axes.imshow(np.asarray(image.permute(1, 2, 0)), interpolation="nearest")
            axes.set_axis_off()
            if row == 0:
                axes.set_title(titles[column], color=INK, fontsize=10)
        _, _, height, width = crop.box
        scale = scale_of(crop.box, (crop.side, crop.side))
        figure.text(
            0.03,
            0.78 - 0.283 * row,
            f"1/{scale}: mean difference {float(difference.abs().mean()):.1f} levels\n"
            f"{height}x{width} resized to {crop.side}x{crop.side}",
            color=INK,
            fontsize=9,
            rotation=90,
            ha="center",
            va="center",
        )
    words = (
        f"Photographs that ship with scikit-image, as JPEG of quality {QUALITY}, 4:2:0. Each crop "
        "is resized with antialiasing. Grey on the right is no difference."
    )
    write(
        figure,
        "The same crops, decoded whole and at a smaller scale",
        words,
        path,
        top=0.97,
        bottom=0.055,
    )


def decoded(crop: Crop) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a crop that is decoded whole, and at a smaller scale: uint8 [3, side, side] each."""
    file = io.BytesIO()
    installed_photographs()[crop.photograph].save(file, "JPEG", quality=QUALITY)
    data = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
    plain, size = make_decoder("torchvision"), (crop.side, crop.side)
    whole, scaled = (
        resize(
            decoder.decode_part(data, probe(data), crop.box, size), size, "bilinear", antialias=True
        )
        for decoder in (plain, ScaledDecoder(plain))
    )
    return whole, scaled


if __name__ == "__main__":
    main()
