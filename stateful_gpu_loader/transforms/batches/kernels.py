"""The Triton kernel: one launch that crops, resizes, flips, normalizes and casts a ragged batch.

:mod:`~stateful_gpu_loader.transforms.batches.ragged` and the kernels of ColorJitter import this
file when needed, because only GPU machines have triton.

A program makes a tile of BLOCK_ROWS x BLOCK_COLUMNS pixels of one image, all three channels. It
reads each source row of the tile once, resizes it, and adds it with its weight to the tile's rows.
Where tiles overlap, bytes come from the cache.

The number of columns follows the width of the batch. The shape of a tile changes no operation on a
pixel.
"""

# mypy: disable-error-code="import-untyped", disallow-untyped-decorators=False
# ruff: noqa: N803 (constants of a kernel are upper-case, as everywhere in Triton)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_IN_PTX = tl.constexpr(torch.version.hip is None and not triton.knobs.runtime.interpret)


@triton.jit
def divided(value: tl.tensor, by: tl.tensor) -> tl.tensor:
    """Divide float32 values, rounded to nearest as in torch, subnormal numbers included.

    The arguments are broadcast. In some versions, such as Triton 3.4, ``tl.math.div_rn`` treats
    numbers below 2**-126 as 0. The PTX instruction used here does not. Triton's interpreter and AMD
    lack PTX, but have a correct ``div_rn``.
    """
    if _IN_PTX:
        return tl.inline_asm_elementwise(
            "div.rn.f32 $0, $1, $2;", "=f,f,f", [value, by], tl.float32, is_pure=True, pack=1
        )
    else:  # noqa: RET505 (a kernel's branch at compile time)
        return tl.math.div_rn(value, by)


VERSION: str = triton.__version__
FIELDS = 12
"""Number of parameters per sample: see :func:`~.ragged.parameters`."""

BLOCK = (4, 128)
"""Rows and columns; fewer columns for a narrow batch. On an H100 a batch of 256 photographs takes
178 us, and 229 us in blocks of 8 x 64 (``"launch by block"`` of ``benchmarks/bench_gpu.py``)."""
_LARGEST_GRID = 65535


def resample(
    parameters: Tensor, coefficients: Tensor, out: Tensor, *, antialias: bool, steps: str
) -> None:
    """Launch on the current stream. The images must live until the kernel has read them.

    Args:
        parameters: int64 [n, FIELDS], on the device.
        coefficients: float32 [len(steps), 3], on the device; unread if there are no steps.
        out: [n, 3, h, w], uint8, float32, float16 or bfloat16, of any strides.
        antialias: whether the triangle covers the skipped pixels.
        steps: as :attr:`Pointwise.steps`, one letter per step.
    """
    samples, _, height, width = out.shape
    rows, columns = BLOCK[0], min(BLOCK[1], max(32, triton.next_power_of_2(width)))
    tiles = triton.cdiv(height, rows) * triton.cdiv(width, columns)
    for first in range(0, samples, _LARGEST_GRID):
        last = min(first + _LARGEST_GRID, samples)
        resample_kernel[(tiles, last - first)](
            parameters[first:last],
            coefficients,
            out[first:last],
            height,
            width,
            *out.stride(),
            ANTIALIAS=antialias,
            STEPS=steps,
            FIELDS=FIELDS,
            BLOCK_ROWS=rows,
            BLOCK_COLUMNS=columns,
            num_warps=1,
            enable_fp_fusion=False,
        )


@triton.jit
def _taps(
    index: tl.tensor, length: tl.tensor, resized: tl.tensor, ANTIALIAS: tl.constexpr
) -> tl.tensor:
    """Return the source pixels and weights of pixel ``index``, as :func:`~.ragged._taps` does.

    In order: first pixel, number of pixels, distance of the first from the center, the inverse
    of half the width of the triangle of weights.
    """
    scale = divided(length.to(tl.float32), resized.to(tl.float32))
    middle = index.to(tl.float32) + 0.5
    if ANTIALIAS:
        center = middle * scale
        support = tl.maximum(scale, 1.0)
        start = tl.maximum((center - support + 0.5).to(tl.int32), 0)
        stop = tl.minimum((center + support + 0.5).to(tl.int32), length)
        offset = start.to(tl.float32) - center + 0.5
    else:
        support = scale * 0.0 + 1.0
        place = tl.fma(middle, tl.broadcast_to(scale, middle.shape), middle * 0.0 - 0.5)
        nearest = tl.minimum(tl.maximum(place, 0.0), (length - 1).to(tl.float32))
        start = nearest.to(tl.int32)
        stop = tl.minimum(start + 2, length)
        offset = start.to(tl.float32) - nearest
    return start, stop - start, offset, divided(1.0, support)


@triton.jit
def _weight(tap: tl.tensor, offset: tl.tensor, inverse: tl.tensor) -> tl.tensor:
    return tl.maximum(1.0 - tl.abs((tap + offset) * inverse), 0.0)


@triton.jit
def _gain(
    start: tl.tensor, count: tl.tensor, offset: tl.tensor, inverse: tl.tensor, taps: tl.tensor
) -> tl.tensor:
    """Return 1 / the sum of the weights."""
    total = offset * 0.0
    for tap in range(taps):
        total += tl.where(tap < count, _weight(tap, offset, inverse), 0.0)
    return divided(1.0, total)


@triton.jit
def _loaded(place: tl.tensor) -> tl.tensor:
    # Through int32, because converting uint8 directly is slow (I2F, not I2FP).
    return tl.load(place).to(tl.int32).to(tl.float32)


@triton.jit
def _finished(
    value: tl.tensor, coefficients: tl.tensor, CHANNEL: tl.constexpr, STEPS: tl.constexpr
) -> tl.tensor:
    """Round half to even, as torch.round does, and apply the steps."""
    value = (value + 12582912.0) - 12582912.0
    for step in tl.static_range(len(STEPS)):
        coefficient = tl.load(coefficients + 3 * step + CHANNEL)
        if STEPS[step] == "-":
            value = value - coefficient
        elif STEPS[step] == "*":
            value = value * coefficient
        else:
            value = divided(value, coefficient)
    return value


@triton.jit(
    do_not_specialize=["height", "width", "n_stride", "channel_stride", "row_stride", "col_stride"]
)
def resample_kernel(
    parameters: tl.tensor,
    coefficients: tl.tensor,
    out: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    n_stride: tl.tensor,
    channel_stride: tl.tensor,
    row_stride: tl.tensor,
    col_stride: tl.tensor,
    ANTIALIAS: tl.constexpr,
    STEPS: tl.constexpr,
    FIELDS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
) -> None:
    sample = tl.program_id(1).to(tl.int64)
    blocks = tl.cdiv(width, BLOCK_COLUMNS)
    first_row = tl.program_id(0) // blocks * BLOCK_ROWS
    first_column = tl.program_id(0) % blocks * BLOCK_COLUMNS

    fields = parameters + sample * FIELDS
    source = tl.load(fields).to(tl.pointer_type(tl.uint8))
    source_row = tl.load(fields + 1)
    source_column = tl.load(fields + 2).to(tl.int32)
    source_channel = tl.load(fields + 3)
    box_height = tl.load(fields + 4).to(tl.int32)
    box_width = tl.load(fields + 5).to(tl.int32)
    resized_height = tl.load(fields + 6).to(tl.int32)
    resized_width = tl.load(fields + 7).to(tl.int32)
    row_begin = tl.load(fields + 8).to(tl.int32)
    row_step = tl.load(fields + 9).to(tl.int32)
    column_begin = tl.load(fields + 10).to(tl.int32)
    column_step = tl.load(fields + 11).to(tl.int32)

    columns = first_column + tl.arange(0, BLOCK_COLUMNS)
    x_index = column_begin + column_step * tl.minimum(columns, width - 1)
    x_start, x_count, x_offset, x_inverse = _taps(x_index, box_width, resized_width, ANTIALIAS)
    x_taps = tl.max(x_count, axis=0)
    x_gain = _gain(x_start, x_count, x_offset, x_inverse, x_taps)

    rows = first_row + tl.arange(0, BLOCK_ROWS)[:, None]
    y_index = row_begin + row_step * tl.minimum(rows, height - 1)
    y_start, y_count, y_offset, y_inverse = _taps(y_index, box_height, resized_height, ANTIALIAS)
    y_gain = _gain(y_start, y_count, y_offset, y_inverse, tl.max(y_count))

    red = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), tl.float32)
    green = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), tl.float32)
    blue = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), tl.float32)
    x_first = x_start * source_column
    for y in range(tl.min(y_start), tl.max(y_start + y_count)):
        pixels = source + y * source_row
        row_red = tl.zeros((BLOCK_COLUMNS,), tl.float32)
        row_green = tl.zeros((BLOCK_COLUMNS,), tl.float32)
        row_blue = tl.zeros((BLOCK_COLUMNS,), tl.float32)
        for tap in range(x_taps):
            weight = tl.where(tap < x_count, _weight(tap, x_offset, x_inverse) * x_gain, 0.0)
            place = pixels + (x_first + tl.minimum(tap, x_count - 1) * source_column)
            row_red = tl.fma(weight, _loaded(place), row_red)
            row_green = tl.fma(weight, _loaded(place + source_channel), row_green)
            row_blue = tl.fma(weight, _loaded(place + 2 * source_channel), row_blue)
        # Weights outside are nearly zero, but pixels must not depend on the tile's rows.
        is_tap = (y >= y_start) & (y < y_start + y_count)
        weight = tl.where(is_tap, _weight(y - y_start, y_offset, y_inverse) * y_gain, 0.0)
        weight = tl.broadcast_to(weight, (BLOCK_ROWS, BLOCK_COLUMNS))
        red = tl.fma(weight, tl.broadcast_to(row_red[None, :], red.shape), red)
        green = tl.fma(weight, tl.broadcast_to(row_green[None, :], green.shape), green)
        blue = tl.fma(weight, tl.broadcast_to(row_blue[None, :], blue.shape), blue)

    inside = (rows < height) & (columns < width)[None, :]
    place = out + sample * n_stride + rows * row_stride + columns[None, :] * col_stride
    dtype = out.dtype.element_ty
    tl.store(place, _finished(red, coefficients, 0, STEPS).to(dtype), mask=inside)
    place += channel_stride
    tl.store(place, _finished(green, coefficients, 1, STEPS).to(dtype), mask=inside)
    place += channel_stride
    tl.store(place, _finished(blue, coefficients, 2, STEPS).to(dtype), mask=inside)
