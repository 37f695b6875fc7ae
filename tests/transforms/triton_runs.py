"""Triton's kernels without a GPU: run by its interpreter, or compiled for Hopper."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)
_SKIPS = {
    "0-dimensional": "this triton's interpreter fails with this numpy (triton < 3.7, numpy >= 2.4)",
    "rounds twice": "this triton's interpreter has no fused multiply-add",
}


def interpreted(module: str) -> Any:
    """Return a program's JSON output; TRITON_INTERPRET is read when triton is imported."""
    run = subprocess.run(
        [sys.executable, "-m", module],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"TRITON_INTERPRET": "1"},
    )
    for sign, reason in _SKIPS.items():
        if run.returncode and sign in run.stderr:
            pytest.skip(reason)
    assert not run.returncode, run.stderr
    return json.loads(run.stdout)


def ptx_for_hopper(
    kernel: Any, signature: dict[str, str], constants: dict[str, Any], num_warps: int
) -> str:
    """Return a kernel's assembly, which triton's ptxas also turns into machine code."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = signature | dict.fromkeys(constants, "constexpr")
    in_order = {name: types.get(name, "i32") for name in kernel.arg_names}
    options = {"num_warps": num_warps, "enable_fp_fusion": False}
    source = ASTSource(kernel, in_order, constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    text: str = compiled.asm["ptx"]
    assert ".target sm_90" in text
    assert len(compiled.asm["cubin"]) > 1000
    # Too few registers would show as local memory.
    assert ".local" not in text
    return text
