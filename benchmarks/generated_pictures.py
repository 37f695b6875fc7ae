"""Pictures with the statistics of photographs, for machines that have none."""

from __future__ import annotations

import numpy as np
from PIL import Image

_MEAN, _DEVIATION = 128.0, 48.0
_COLORFULNESS = 0.35
"""Deviation of a channel from the common grey, relative to the deviation of the grey."""


def picture(width: int, height: int, seed: int) -> Image.Image:
    """Return an RGB picture whose amplitudes fall as one over the frequency.

    Natural images have this in common (Field, 1987, Relations between the statistics of natural
    images and the response properties of cortical cells), and it determines how a JPEG encoder
    spends its bits. The same seed gives the same picture.

    >>> picture(64, 48, seed=0).size
    (64, 48)
    """
    generator = np.random.default_rng(seed)
    grey = _noise(width, height, generator)
    colors = [_noise(width, height, generator) * _COLORFULNESS for _ in range(3)]
    pixels = [_MEAN + _DEVIATION * (grey + color) for color in colors]
    return Image.fromarray(np.stack(pixels, axis=-1).clip(0, 255).round().astype(np.uint8))


def _noise(width: int, height: int, generator: np.random.Generator) -> np.ndarray:
    """Return float64 [height, width] with mean 0 and deviation 1."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    frequency[0, 0] = np.inf
    spectrum = np.fft.rfft2(generator.standard_normal((height, width))) / frequency
    values = np.fft.irfft2(spectrum, s=(height, width))
    return np.asarray(values / values.std())
