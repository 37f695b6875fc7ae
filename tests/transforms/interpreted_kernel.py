"""Runs the Triton kernel, and prints its difference from torch's path.

A separate program, run with TRITON_INTERPRET=1, which is read when triton is imported.
"""

from __future__ import annotations

import json

import torch

from stateful_gpu_loader.decoders.decoder import as_tensor
from stateful_gpu_loader.decoders.orientation import turned
from stateful_gpu_loader.transforms.batches import kernels
from stateful_gpu_loader.transforms.batches.ragged import launch, resample
from tests.transforms.guarded import guarded
from tests.transforms.kernel_cases import SIZES, cases
from tests.transforms.ragged_pictures import ragged


def main() -> None:
    images = ragged(SIZES)
    found = {}
    for name, (placement, pointwise, memory_format) in cases().items():
        expected = resample(images, placement, pointwise, memory_format)
        out = torch.full_like(expected, 77)
        fenced = [guarded(image, at_end=len(found) % 2 == 0) for image in images]
        # One case in its layout: planar, with a pitch, with bytes in between.
        launch(kernels, images if name == "window" else fenced, placement, pointwise, out)
        error = (out.double() - expected.double()).abs()
        found[name] = {"max": error.max().item(), "unequal": (error > 0).double().mean().item()}
    print(json.dumps(found | {"turned": {"unequal": unequal_when_turned(images)}}))


def unequal_when_turned(images: list[torch.Tensor]) -> float:
    """Return the share of values that change when an image is stored in another orientation."""
    placement, pointwise, _ = cases()["window"]
    expected, out = (torch.zeros_like(resample(images, placement, pointwise)) for _ in range(2))
    launch(kernels, images, placement, pointwise, expected)
    unequal = []
    for first in (1, 5):
        orientations = range(first, first + len(images))
        stored = [
            as_tensor(turned(*pair)) for pair in zip(images, map(undone, orientations), strict=True)
        ]
        fenced = [guarded(image, at_end=first == 1) for image in stored]
        shown = [turned(*pair) for pair in zip(fenced, orientations, strict=True)]
        launch(kernels, shown, placement, pointwise, out)
        unequal.append((out != expected).double().mean().item())
    return max(unequal)


def undone(orientation: int) -> int:
    """Return the inverse orientation."""
    return {6: 8, 8: 6}.get(orientation, orientation)


if __name__ == "__main__":
    main()
