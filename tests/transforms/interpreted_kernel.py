"""Runs the Triton kernel, and prints how far it is from torch's path.

A program of its own, to be run with TRITON_INTERPRET=1, which counts when triton is imported.
"""

from __future__ import annotations

import json

import torch

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
        # One case as they lie: planar, with a pitch, with bytes in between.
        launch(kernels, images if name == "window" else fenced, placement, pointwise, out)
        error = (out.double() - expected.double()).abs()
        found[name] = {"max": error.max().item(), "unequal": (error > 0).double().mean().item()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
