"""Runs ColorJitter's kernels, and prints their difference from torch's path.

A separate program, run with TRITON_INTERPRET=1, which is read when triton is imported.
"""

from __future__ import annotations

import json

import torch
from triton._C.libtriton import interpreter

from stateful_gpu_loader.transforms.color import jitter
from tests.transforms.color.jitter_cases import cases

LAYOUTS = (torch.contiguous_format, torch.channels_last)


def main() -> None:
    if not hasattr(interpreter, "fma_fp32"):
        raise SystemExit("tl.fma rounds twice here")
    expected = {
        name: recipe.apply_batch(batch, numbers)
        for name, (recipe, batch, numbers) in cases().items()
    }
    jitter._within_kernels = lambda images: True
    # The kernels' own attempt runs here too, and raises errors that a warning would hide.
    assert jitter._kernels(torch.device("cpu")) is not None
    found = {}
    for name, (recipe, batch, numbers) in cases().items():
        before = batch.clone()
        made, wanted = recipe.apply_batch(batch, numbers), expected[name]
        equal = (made == wanted) | (made.isnan() & wanted.isnan())
        found[name] = {
            "dtypes": [str(made.dtype), str(wanted.dtype)],
            "shapes": [list(made.shape), list(wanted.shape)],
            "layouts": [
                [batch.is_contiguous(memory_format=layout) for layout in LAYOUTS],
                [made.is_contiguous(memory_format=layout) for layout in LAYOUTS],
            ],
            "num_unequal": int((~equal).sum()),
            "is_input_as_before": torch.equal(batch.nan_to_num(9), before.nan_to_num(9)),
            "is_memory_shared": made.untyped_storage().data_ptr()
            == batch.untyped_storage().data_ptr(),
            "num_different": int((wanted != before).sum()),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
