"""The Triton kernels of ColorJitter: a batch in two launches, each image in its own order.

Contrast blends with the image's mean grey after the preceding operations. The first launch applies
these and sums the grey; the second applies all operations. Pixels stay in registers between
operations, so each launch reads the batch once.

The arithmetic is that of ``adjustments``, in the same order. But ``adjustments`` rounds a sum to
float64 and then to float32, and ``fma`` rounds once, so about one float32 sum in 2**29 differs in
its last bit. Bytes are equal.

Sums are whole numbers below 2**53 in float64, so they do not depend on the order of additions.
"""

# ruff: noqa: N803, N806 (constants of a kernel are upper-case, as everywhere in Triton)
# mypy: disable-error-code="import-untyped", disallow-untyped-decorators=False

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.batches.device import on_device
from stateful_gpu_loader.transforms.batches.kernels import divided
from stateful_gpu_loader.transforms.recipe import FloatArray

FIELDS = 10
"""Numbers per sample: four operations, four factors, the number of operations before contrast, and
the sum of grey, which the first launch fills in."""

BLOCK = 512
"""Pixels per program."""

NUM_WARPS = 4

_CONTRAST = 1


def jitter(images: Tensor, orders: IndexArray, factors: FloatArray) -> Tensor:
    """Launch on the current stream.

    Args:
        images: [n, 3, H, W], uint8, or float32 in [0, 1], of any strides; images without one
            stride from pixel to pixel are copied first. 32 bits must hold every offset within an
            image.
        orders: [n, 4]: 0 brightness, 1 contrast, 2 saturation, 3 hue, each at most once; 4 nothing.
        factors: float64 [n, 4], indexed by operation.

    Returns:
        The batch, in its own memory, planar or interleaved as the images are.
    """
    is_contrast = orders == _CONTRAST
    before_contrast = is_contrast.argmax(axis=1)
    numbers = (orders, factors, before_contrast, np.zeros(len(orders)))
    table = on_device(np.column_stack(numbers).astype(np.float64, copy=False), images.device)
    pixels = images.flatten(2)
    out = torch.empty_like(pixels)
    n, _, count = pixels.shape
    grid = (n * triton.cdiv(count, BLOCK),)
    constants = {"FIELDS": FIELDS, "BLOCK": BLOCK}
    options = {"num_warps": NUM_WARPS, "enable_fp_fusion": False}
    with torch.cuda.device_of(out):
        if is_contrast.any():
            grey_kernel[grid](table, pixels, count, *pixels.stride(), **constants, **options)
        jitter_kernel[grid](
            table, pixels, out, count, *pixels.stride(), *out.stride(), **constants, **options
        )
    return out.view(images.shape)


@triton.jit
def _place(count: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """Return this program's sample, its pixels, and a mask of valid pixels."""
    blocks = tl.cdiv(count, BLOCK)
    sample = (tl.program_id(0) // blocks).to(tl.int64)
    pixels = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    return sample, pixels, pixels < count


@triton.jit
def _loaded(place: tl.tensor, inside: tl.tensor) -> tl.tensor:
    return tl.load(place, mask=inside, other=0).to(tl.float32)


@triton.jit
def _clamped(value: tl.tensor, highest: tl.constexpr) -> tl.tensor:
    """Clamp from 0, as torch.clamp does: NaN stays NaN."""
    value = tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(value, highest, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _bounded(value: tl.tensor, BYTES: tl.constexpr) -> tl.tensor:
    """Clip to the range of the dtype; bytes are rounded down."""
    return tl.floor(_clamped(value, 255.0)) if BYTES else _clamped(value, 1.0)


@triton.jit
def _fused_add(value: tl.tensor, other: tl.tensor, weight: tl.tensor) -> tl.tensor:
    """Return value + other * weight, rounded once."""
    return tl.fma(tl.broadcast_to(other, value.shape), tl.broadcast_to(weight, value.shape), value)


@triton.jit
def _grey(red: tl.tensor, green: tl.tensor, blue: tl.tensor, BYTES: tl.constexpr) -> tl.tensor:
    grey = tl.fma(green, green * 0.0 + 0.587, red * 0.2989)
    grey = tl.fma(blue, blue * 0.0 + 0.114, grey)
    if BYTES:
        grey = tl.floor(grey)
    return grey


@triton.jit
def _blended(
    red: tl.tensor,
    green: tl.tensor,
    blue: tl.tensor,
    other: tl.tensor,
    place: tl.tensor,
    BYTES: tl.constexpr,
) -> tl.tensor:
    """Return pixels * factor + other * (1 - factor)."""
    factor = tl.load(place)
    weight = (1.0 - factor).to(tl.float32)
    factor = factor.to(tl.float32)
    red = _bounded(_fused_add(red * factor, other, weight), BYTES)
    green = _bounded(_fused_add(green * factor, other, weight), BYTES)
    blue = _bounded(_fused_add(blue * factor, other, weight), BYTES)
    return red, green, blue


@triton.jit
def _turned(
    red: tl.tensor, green: tl.tensor, blue: tl.tensor, shift: tl.tensor, BYTES: tl.constexpr
) -> tl.tensor:
    """Rotate the hue as ``adjustments.adjust_hue``, but select by conditions."""
    if BYTES:
        red *= 1.0 / 255.0
        green *= 1.0 / 255.0
        blue *= 1.0 / 255.0
    value = tl.maximum(red, green, propagate_nan=tl.PropagateNan.ALL)
    value = tl.maximum(value, blue, propagate_nan=tl.PropagateNan.ALL)
    darkest = tl.minimum(red, green, propagate_nan=tl.PropagateNan.ALL)
    darkest = tl.minimum(darkest, blue, propagate_nan=tl.PropagateNan.ALL)
    span = value - darkest
    is_grey = tl.where(span == 0.0, 1.0, 0.0)
    saturation = divided(span, value + is_grey)
    span += is_grey
    is_red = value == red
    is_green = value == green
    first = value - tl.where(is_red, blue, tl.where(is_green, red, green))
    second = value - tl.where(is_red, green, tl.where(is_green, blue, red))
    start = tl.where(is_red, 0.0, tl.where(is_green, 2.0, 4.0))
    sixths = (divided(first, span) + start) - divided(second, span)
    hue = sixths * (1.0 / 6.0) + 1.0
    hue = (hue - tl.floor(hue)) + shift
    sixths = (hue - tl.floor(hue)) * 6.0
    sector = tl.floor(sixths)
    chroma = saturation * (sixths - sector)
    rest = 1.0 - saturation
    falling = _clamped((1.0 - chroma) * value, 1.0)
    rising = _clamped((chroma + rest) * value, 1.0)
    low = _clamped(rest * value, 1.0)
    # The first is the rest, or sector 6 of a hue rounded up to a whole turn.
    second = sector == 1.0
    third = sector == 2.0
    fourth = sector == 3.0
    fifth = sector == 4.0
    sixth = sector == 5.0
    red = tl.where(second, falling, value)
    red = tl.where(third | fourth, low, tl.where(fifth, rising, red))
    green = tl.where(second | third, value, rising)
    green = tl.where(fourth, falling, tl.where(fifth | sixth, low, green))
    blue = tl.where(third, rising, low)
    blue = tl.where(fourth | fifth, value, tl.where(sixth, falling, blue))
    if BYTES:
        red = tl.floor(red * 255.999)
        green = tl.floor(green * 255.999)
        blue = tl.floor(blue * 255.999)
    return red, green, blue


@triton.jit
def _adjusted(
    operation: tl.tensor,
    factors: tl.tensor,
    red: tl.tensor,
    green: tl.tensor,
    blue: tl.tensor,
    BYTES: tl.constexpr,
) -> tl.tensor:
    """Change brightness, saturation or hue, or nothing."""
    if operation == 0:
        factor = tl.load(factors).to(tl.float32)
        red = _bounded(red * factor, BYTES)
        green = _bounded(green * factor, BYTES)
        blue = _bounded(blue * factor, BYTES)
    elif operation == 2:
        grey = _grey(red, green, blue, BYTES)
        red, green, blue = _blended(red, green, blue, grey, factors + 2, BYTES)
    elif operation == 3:
        shift = tl.load(factors + 3).to(tl.float32)
        red, green, blue = _turned(red, green, blue, shift, BYTES)
    return red, green, blue


@triton.jit(do_not_specialize=["count", "n_stride", "channel_stride", "pixel_stride"])
def grey_kernel(
    table: tl.tensor,
    images: tl.tensor,
    count: tl.tensor,
    n_stride: tl.tensor,
    channel_stride: tl.tensor,
    pixel_stride: tl.tensor,
    FIELDS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Sum the grey that contrast needs: bytes, or floats in units of 2**-24."""
    BYTES: tl.constexpr = images.dtype.element_ty == tl.uint8
    sample, pixels, inside = _place(count, BLOCK)
    row = table + sample * FIELDS
    place = images + sample * n_stride + pixels * pixel_stride
    red = _loaded(place, inside)
    green = _loaded(place + channel_stride, inside)
    blue = _loaded(place + 2 * channel_stride, inside)
    for step in range(tl.load(row + 8).to(tl.int32)):
        operation = tl.load(row + step).to(tl.int32)
        red, green, blue = _adjusted(operation, row + 4, red, green, blue, BYTES)
    # Pixels outside are black, which these operations do not change.
    grey = _grey(red, green, blue, BYTES)
    if not BYTES:
        # Rounded half to even, as in torch.round.
        grey = (grey.to(tl.float64) * 16777216.0 + 6755399441055744.0) - 6755399441055744.0
    tl.atomic_add(row + 9, tl.sum(grey, axis=0).to(tl.float64), sem="relaxed")


@triton.jit(
    do_not_specialize=[
        "count",
        *("n_stride", "channel_stride", "pixel_stride"),
        *("out_n_stride", "out_channel_stride", "out_pixel_stride"),
    ]
)
def jitter_kernel(
    table: tl.tensor,
    images: tl.tensor,
    out: tl.tensor,
    count: tl.tensor,
    n_stride: tl.tensor,
    channel_stride: tl.tensor,
    pixel_stride: tl.tensor,
    out_n_stride: tl.tensor,
    out_channel_stride: tl.tensor,
    out_pixel_stride: tl.tensor,
    FIELDS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    BYTES: tl.constexpr = images.dtype.element_ty == tl.uint8
    sample, pixels, inside = _place(count, BLOCK)
    row = table + sample * FIELDS
    place = images + sample * n_stride + pixels * pixel_stride
    red = _loaded(place, inside)
    green = _loaded(place + channel_stride, inside)
    blue = _loaded(place + 2 * channel_stride, inside)
    total = tl.load(row + 9)
    if not BYTES:
        total *= 1.0 / 16777216.0
    mean = (total / tl.cast(count, tl.float64)).to(tl.float32)
    for step in range(4):
        operation = tl.load(row + step).to(tl.int32)
        if operation == 1:
            red, green, blue = _blended(red, green, blue, mean, row + 5, BYTES)
        else:
            red, green, blue = _adjusted(operation, row + 4, red, green, blue, BYTES)
    place = out + sample * out_n_stride + pixels * out_pixel_stride
    dtype = out.dtype.element_ty
    tl.store(place, red.to(dtype), mask=inside)
    tl.store(place + out_channel_stride, green.to(dtype), mask=inside)
    tl.store(place + 2 * out_channel_stride, blue.to(dtype), mask=inside)
