"""Division in Triton kernels, rounded to nearest as torch rounds it, the least numbers included.

``tl.math.div_rn`` of some versions, of Triton 3.4 for one, takes numbers below 2**-126 for 0, so
that two of them make NaN. PTX has one instruction that does not, and it is the one named here.
Triton's interpreter and AMD know no PTX; they have ``div_rn``.
"""

# mypy: disable-error-code="import-untyped", disallow-untyped-decorators=False

from __future__ import annotations

import torch
import triton
import triton.language as tl

_IN_PTX = tl.constexpr(torch.version.hip is None and not triton.knobs.runtime.interpret)


@triton.jit
def divided(value: tl.tensor, by: tl.tensor) -> tl.tensor:
    """One float32 by another; either is broadcast to the other."""
    if _IN_PTX:
        return tl.inline_asm_elementwise(
            "div.rn.f32 $0, $1, $2;", "=f,f,f", [value, by], tl.float32, is_pure=True, pack=1
        )
    else:  # noqa: RET505 (a kernel's branch at compile time)
        return tl.math.div_rn(value, by)
