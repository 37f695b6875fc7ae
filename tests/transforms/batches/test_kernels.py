"""The Triton kernel: run by Triton's interpreter, compiled for Hopper; no GPU is needed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.transforms.kernel_cases import cases

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


@pytest.fixture(scope="module")
def found() -> Any:
    """For each case the largest difference from torch's path, and how many values differ."""
    return json.loads(_interpreted())


def _interpreted() -> str:
    command = [sys.executable, "-m", "tests.transforms.interpreted_kernel"]
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        env=os.environ | {"TRITON_INTERPRET": "1"},
    )
    if run.returncode and "0-dimensional" in run.stderr:
        pytest.skip("this triton's interpreter fails with this numpy (triton < 3.7, numpy >= 2.4)")
    assert not run.returncode, run.stderr
    return run.stdout


@pytest.mark.parametrize("name", cases())
def test_the_kernel_is_torchs_path(found: Any, name: str) -> None:
    """Crops, resizes, flips, steps, casts and strides; a byte may differ by 1 at a half."""
    placement, pointwise, _ = cases()[name]
    if placement.antialias is None:
        assert found[name]["unequal"] == 0
        return
    level = {"": 1.0, "*": 0.25, "*-/": 1 / (255 * 0.2)}[pointwise.steps]
    if pointwise.dtype in (torch.float16, torch.bfloat16):
        # The interpreter, unlike a GPU, cuts bfloat16 off instead of rounding it.
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
        *[(dtype, flag, "-*", 64) for dtype in ("fp32", "fp16", "bf16") for flag in (True, False)],
        ("u8", True, "", 64),
        ("u8", False, "", 64),
        ("fp32", True, "*-/", 64),
        ("fp32", True, "-*", 32),
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
    """Every variant, to machine code, by the ptxas that triton brings."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from stateful_gpu_loader.transforms.batches import kernels

    constants = {
        "ANTIALIAS": antialias,
        "STEPS": steps,
        "FIELDS": kernels.FIELDS,
        "BLOCK_ROWS": kernels.BLOCK[0],
        "BLOCK_COLUMNS": columns,
    }
    pointers = {"parameters": "*i64", "coefficients": "*fp32", "out": f"*{dtype}"}
    names = ("height", "width", "n_stride", "channel_stride", "row_stride", "col_stride")
    signature = pointers | dict.fromkeys(names, "i32") | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernels.resample_kernel, signature, constants)
    options = {"num_warps": 1, "enable_fp_fusion": False}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    text = compiled.asm["ptx"]
    assert ".target sm_90" in text
    assert len(compiled.asm["cubin"]) > 1000
    # Registers that do not suffice would show as local memory.
    assert ".local" not in text
    # No quotient is approximate, and no small number is taken for 0.
    assert "div.rn.f32" in text
    assert not re.search(r"\.ftz|\.approx|div\.full", text)
