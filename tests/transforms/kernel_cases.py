"""Ragged batches that together execute every line of the Triton kernel."""

from __future__ import annotations

import numpy as np
import torch

from stateful_gpu_loader.transforms.batches.placement import Placement, Pointwise
from tests.transforms.pictures import sizes_of
from tests.transforms.ragged_pictures import ragged

SIZES = [(12, 17), (40, 9), (1, 1), (30, 31)]
NONE = Pointwise()
STEPS = NONE.then("*", [1 / 255]).then("-", [0.4, 0.5, 0.6]).then("/", [0.2, 0.3, 0.4])
FLAGS = np.array([[True, False], [False, True], [True, True], [False, False]])


def flipped(placement: Placement) -> Placement:
    """Each image in its own way."""
    return placement.flip(0, FLAGS[:, 0]).flip(1, FLAGS[:, 1])


def resized(placement: Placement, height: int, width: int, antialias: bool) -> Placement:
    after = placement.resize(np.array([[height, width]] * 4), antialias)
    assert after is not None
    return after


def cases() -> dict[str, tuple[Placement, Pointwise, torch.memory_format]]:
    """Return launches: all variants of the kernel, small."""
    whole = Placement.of(sizes_of(ragged(SIZES)))
    boxes = np.array([[2, 3, 7, 11], [5, 1, 30, 8], [0, 0, 1, 1], [4, 0, 25, 30]])
    window = np.array([[1, 2, 5, 6]] * 4)
    both = flipped(resized(flipped(whole).crop(boxes), 8, 10, True)).crop(window)
    plain, last = torch.contiguous_format, torch.channels_last
    return {
        "copied": (whole.crop(np.array([[0, 0, 1, 1]] * 4)), NONE, plain),
        "mirrored": (flipped(whole).crop(np.array([[0, 0, 1, 1]] * 4)), NONE, plain),
        "down": (resized(whole, 3, 4, True), NONE, plain),
        "up": (resized(whole, 5, 40, True), NONE, plain),
        "several tiles": (resized(whole, 9, 130, True), NONE, plain),
        "without antialias": (resized(whole, 6, 7, False), NONE, plain),
        "without antialias, up": (flipped(resized(flipped(whole), 13, 33, False)), NONE, last),
        "window": (both, NONE, plain),
        "window, normalized": (both, STEPS, last),
        "float16": (both, STEPS.cast(torch.float16), last),
        "bfloat16": (both, STEPS.cast(torch.bfloat16), plain),
        "one step": (both, NONE.then("*", [0.25]), plain),
        "cast": (both, NONE.cast(torch.float32), plain),
    }
