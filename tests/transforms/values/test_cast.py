"""ToDtype (D6)."""

from __future__ import annotations

import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader.transforms import ToDtype
from tests.transforms.pictures import as_float, decoded

DTYPES = [torch.uint8, torch.int16, torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_torchvisions(dtype: torch.dtype, scale: bool) -> None:
    """D6: bit for bit, from bytes and from floats."""
    for image in (decoded("coffee"), as_float(decoded("coffee"))):
        made = ToDtype(dtype, scale).apply(image, [])
        assert torch.equal(made, F.to_dtype(image, dtype, scale))
        assert made.dtype is dtype is ToDtype(dtype, scale).dtype_after(image.dtype)


@pytest.mark.parametrize("dtype", [{tv_tensors.Image: torch.float32}, "float32", float])
def test_anything_but_a_dtype_is_refused(dtype: object) -> None:
    with pytest.raises(TypeError, match=r"pass the image's dtype"):
        ToDtype(dtype)  # type: ignore[arg-type]
