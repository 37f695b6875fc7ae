"""The Triton kernel: run by Triton's interpreter, compiled for Hopper; no GPU is needed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.transforms.kernel_cases import cases
from tests.transforms.triton_runs import interpreted, needs_triton, ptx_for_hopper

pytestmark = needs_triton


@pytest.fixture(scope="module")
def found() -> Any:
    """Largest difference from torch's path, and number of differing values, for each case."""
    return interpreted("tests.transforms.interpreted_kernel")


@pytest.mark.parametrize("name", cases())
def test_the_kernel_is_torchs_path(found: Any, name: str) -> None:
    """Crops, resizes, flips, steps, casts and strides; a byte may differ by 1 at a half."""
    placement, pointwise, _ = cases()[name]
    if placement.antialias is None:
        assert found[name]["unequal"] == 0
        return
    level = {"": 1.0, "*": 0.25, "*-/": 1 / (255 * 0.2)}[pointwise.steps]
    if pointwise.dtype in (torch.float16, torch.bfloat16):
        # The interpreter truncates to bfloat16, while a GPU rounds.
        assert found[name]["max"] <= 1.01 * level + 4 * torch.finfo(pointwise.dtype).eps
    else:
        assert found[name]["max"] <= 1.01 * level
    if pointwise.dtype is not torch.bfloat16:
        assert found[name]["unequal"] <= 5e-3


def test_the_kernel_reads_turned_and_mirrored_images_in_place(found: Any) -> None:
    """With the strides of each EXIF orientation, and no byte outside the image."""
    assert found["turned"]["unequal"] == 0


@pytest.mark.parametrize(
    ("dtype", "antialias", "steps", "columns"),
    [
        ("fp32", True, "-*", 64),
        ("fp32", False, "*-/", 32),
        ("fp16", False, "-*", 64),
        ("bf16", True, "*-/", 64),
        ("u8", True, "", 32),
        ("u8", False, "", 64),
    ],
)
def test_the_kernel_compiles_for_hopper(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    dtype: str,
    antialias: bool,
    steps: str,
    columns: int,
) -> None:
    """All pairs of its variants, to machine code, by triton's ptxas."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from stateful_gpu_loader.transforms.batches import kernels

    constants = {
        "ANTIALIAS": antialias,
        "STEPS": steps,
        "FIELDS": kernels.FIELDS,
        "BLOCK_ROWS": kernels.BLOCK[0],
        "BLOCK_COLUMNS": columns,
    }
    pointers = {"parameters": "*i64", "coefficients": "*fp32", "out": f"*{dtype}"}
    text = ptx_for_hopper(kernels.resample_kernel, pointers, constants, num_warps=1)
    # No quotient is approximate, and no small number is flushed to 0.
    assert "div.rn.f32" in text
    assert not re.search(r"\.ftz|\.approx|div\.full", text)
