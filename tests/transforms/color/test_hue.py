"""The hue of ColorJitter: torchvision's, to the bit (D6)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader.transforms.color.adjustments import adjust_hue
from tests.transforms.pictures import ODD_SIZES, as_float, decoded, noise

SIXTHS = [i / 6 for i in range(-3, 4)]


@pytest.mark.parametrize("shift", [*SIXTHS, 0.1, -0.037, 0.4999])
def test_all_kinds_of_color(shift: float) -> None:
    """D6: bit for bit for greys, primaries, ties, and one color in 320."""
    levels = torch.arange(256, dtype=torch.uint8)
    greens, blues = levels.view(1, -1, 1), levels.view(1, 1, -1)
    for red in (0, 1, 100, 254, 255):
        reds = torch.full((1, 256, 256), red, dtype=torch.uint8)
        image = torch.cat([reds, greens.expand(1, 256, 256), blues.expand(1, 256, 256)])
        assert torch.equal(adjust_hue(image, shift), F.adjust_hue(image, shift))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(shift=st.floats(-0.5, 0.5), seed=st.integers(0, 1000), size=st.sampled_from(ODD_SIZES))
def test_any_shift(shift: float, seed: int, size: tuple[int, int]) -> None:
    """D6: bit for bit, on bytes and floats."""
    image = noise(*size, seed=seed)
    assert torch.equal(adjust_hue(image, shift), F.adjust_hue(image, shift))
    image = torch.rand(3, *size, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(adjust_hue(image, shift), F.adjust_hue(image, shift))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_floats_keep_their_dtype(dtype: torch.dtype) -> None:
    image = as_float(decoded("coffee")[:, :50, :50]).to(dtype)
    made = adjust_hue(image, 0.2)
    assert made.dtype is dtype
    assert torch.equal(made, F.adjust_hue(image, 0.2))


def test_channels() -> None:
    """D6: one channel has no hue, two are refused, as torchvision has it."""
    grey = noise(5, 5, channels=1)
    assert adjust_hue(grey, 0.3) is grey
    with pytest.raises(TypeError, match="2 channels"):
        adjust_hue(noise(5, 5, channels=2), 0.3)
