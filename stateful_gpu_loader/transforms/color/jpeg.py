"""JPEG: the loss of JPEG compression, without encoding.

On a CPU, torchvision's libjpeg encodes and decodes. On a device, torch computes the same whole
numbers: rounded colors, averaged chroma, quantized frequencies.

Source: libjpeg-turbo's jccolor.c, jcsample.c, jfdctint.c, jcdctmgr.c, jidctint.c, jdsample.c and
jdcolor.c, with their defaults: 4:2:0, the slow integer DCT, and smooth upsampling.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms.arguments import as_side
from stateful_gpu_loader.transforms.batches.device import on_device
from stateful_gpu_loader.transforms.recipe import Draw, FloatArray, Recipe, in_place


class JPEG(Recipe):
    """Compress the image as JPEG and decompress it, as ``torchvision.transforms.v2.JPEG``.

    Numbers: the quality.

    Args:
        quality: lowest and highest quality, 1 to 100, both included; or one number for it.

    Raises:
        TypeError, ValueError: quality is invalid. For float images :meth:`apply` raises TypeError.

    >>> JPEG((5, 50)).draw(np.array([[0.0], [0.999]]), np.array([[375, 500]] * 2)).numbers.tolist()
    [[5], [50]]
    """

    num_draws = 1
    number_names = ("quality",)

    def __init__(self, quality: int | Sequence[int]) -> None:
        bounds = quality if isinstance(quality, (list, tuple)) else (quality, quality)
        if len(bounds) != 2:
            raise ValueError(f"{quality = } must be one number, or (lowest, highest)")
        lowest, highest = (as_side("quality", bound) for bound in bounds)
        if not lowest <= highest <= 100:
            raise ValueError(f"{quality = } must lie within 1 and 100, and be in order")
        self.quality = lowest, highest

    def draw(self, uniforms: FloatArray, sizes: IndexArray) -> Draw:
        lowest, highest = self.quality
        drawn = lowest + np.floor(uniforms * (highest + 1 - lowest))
        return Draw(drawn.astype(np.int64), sizes)

    motion = in_place

    def apply(self, image: Tensor, numbers: Sequence[float]) -> Tensor:
        import torchvision.io  # noqa: F401 (registers the operators; functions warn since 0.29)

        _check(image)
        quality = int(numbers[0])
        if not image.is_cpu or not hasattr(torch.ops.image, "encode_jpeg"):
            return compressed(image.unsqueeze(0), np.array([quality])).squeeze(0)
        data = torch.ops.image.encode_jpeg(image.contiguous(), quality)
        decoded: Tensor = torch.ops.image.decode_jpeg(data, 0, False)
        return decoded

    def apply_batch(self, images: Tensor, numbers: IndexArray | FloatArray) -> Tensor:
        _check(images)
        if images.is_cpu:
            return super().apply_batch(images, numbers)
        return compressed(images, numbers[:, 0].astype(np.int64))


def _check(images: Tensor) -> None:
    if images.dtype is not torch.uint8 or images.shape[-3] not in (1, 3):
        raise TypeError(
            f"JPEG got {images.dtype} with {images.shape[-3]} channels, but compresses uint8 "
            "images of 1 or 3. Remedy: put it before Normalize and ToDtype"
        )


# fmt: off
_LUMA = np.array([
    16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55,
    14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29, 51, 87, 80, 62,
    18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92,
    49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99,
])
_CHROMA = np.array([
    17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99,
    24, 26, 56, 99, 99, 99, 99, 99, 47, 66, 99, 99, 99, 99, 99, 99,
    *[99] * 32,
])
# fmt: on
"""Quantization steps of the standard at quality 50, row by row."""


def quantization_steps(qualities: IndexArray) -> IndexArray:
    """Return the quantization steps of luma and chroma, int64 [n, 2, 64].

    >>> quantization_steps(np.array([50, 100]))[:, 0, :4]
    array([[16, 11, 10, 16],
           [ 1,  1,  1,  1]])
    """
    scales = np.where(qualities < 50, 5000 // qualities, 200 - 2 * qualities)
    tables = np.stack((_LUMA, _CHROMA))
    steps: IndexArray = np.clip((tables * scales[:, None, None] + 50) // 100, 1, 255)
    return steps


def compressed(images: Tensor, qualities: IndexArray) -> Tensor:
    """Return the images after compression and decompression, each with its own quality.

    Args:
        images: uint8 [n, C, H, W] of 1 or 3 channels, on any device; they are not changed.
        qualities: int64 [n], 1 to 100.

    >>> images = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8) * 3
    >>> compressed(images, np.array([10]))[0, 0, 0]
    tensor([ 5,  7,  9, 13, 17, 20, 23, 24], dtype=torch.uint8)
    """
    steps = on_device(quantization_steps(qualities), images.device).to(torch.int32)
    height, width = images.shape[2:]
    pixels = images.to(torch.int32)
    if images.shape[1] == 1:
        return _coded(pixels, steps[:, :1]).to(torch.uint8)
    luma, blue, red = _to_ycc(*pixels.unbind(1))
    luma = _coded(luma.unsqueeze(1), steps[:, :1]).squeeze(1)
    chroma = _coded(_halved(torch.stack((blue, red), dim=1)), steps[:, 1:])
    blue, red = _doubled(chroma, width)[:, :, :height, :width].unbind(1)
    return _to_rgb(luma, blue, red).to(torch.uint8)


def _to_ycc(red: Tensor, green: Tensor, blue: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """jccolor.c: sums with 16 fractional bits, rounded."""
    middle = (128 << 16) + (1 << 15) - 1
    luma = (red * 19595 + green * 38470 + blue * 7471 + (1 << 15)) >> 16
    to_blue = (blue * 32768 - red * 11059 - green * 21709 + middle) >> 16
    to_red = (red * 32768 - green * 27439 - blue * 5329 + middle) >> 16
    return luma, to_blue, to_red


def _to_rgb(luma: Tensor, blue: Tensor, red: Tensor) -> Tensor:
    """jdcolor.c."""
    blue, red = blue - 128, red - 128
    half = 1 << 15
    planes = (
        luma + ((red * 91881 + half) >> 16),
        luma + ((blue * -22554 - red * 46802 + half) >> 16),
        luma + ((blue * 116130 + half) >> 16),
    )
    return torch.stack(planes, dim=1).clamp_(0, 255)


def _halved(planes: Tensor) -> Tensor:
    """jcsample.c: means of 2 x 2, rounded down and up in turn.

    The right edge is repeated before the means are taken, the lower edge after.
    """
    height, width = planes.shape[2:]
    columns = -(-width // 16) * 16 - width
    planes = _edged(planes, columns, height % 2)
    quads = planes[..., ::2, :] + planes[..., 1::2, :]
    rounding = torch.arange(quads.shape[-1] // 2, device=planes.device, dtype=torch.int32) % 2 + 1
    return (quads[..., ::2] + quads[..., 1::2] + rounding) >> 2


def _doubled(planes: Tensor, width: int) -> Tensor:
    """jdsample.c: 3/4 of the nearest pixel and 1/4 of the next, in both directions."""
    planes = planes[..., : -(-width // 2)]
    if planes.shape[-1] <= 2:
        return planes.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
    above = torch.cat((planes[:, :, :1], planes[:, :, :-1]), dim=2)
    below = torch.cat((planes[:, :, 1:], planes[:, :, -1:]), dim=2)
    rows = torch.stack((planes * 3 + above, planes * 3 + below), dim=3).flatten(2, 3)
    left = torch.cat((rows[..., :1], rows[..., :-1]), dim=3)
    right = torch.cat((rows[..., 1:], rows[..., -1:]), dim=3)
    return torch.stack(((rows * 3 + left + 8) >> 4, (rows * 3 + right + 7) >> 4), dim=4).flatten(3)


def _edged(planes: Tensor, columns: int, rows: int) -> Tensor:
    """Repeat the last column and the last row."""
    if columns:
        planes = torch.cat((planes, planes[..., -1:].expand(*planes.shape[:-1], columns)), dim=-1)
    if rows:
        shape = (*planes.shape[:-2], rows, planes.shape[-1])
        planes = torch.cat((planes, planes[..., -1:, :].expand(shape)), dim=-2)
    return planes


def _coded(planes: Tensor, steps: Tensor) -> Tensor:
    """Transform blocks of 8 x 8, quantize, and transform back.

    Args:
        planes: int32 [n, C, H, W] of 0 to 255.
        steps: int32 [n, 1, 64].
    """
    n, channels, height, width = planes.shape
    edged = _edged(planes, -width % 8, -height % 8) - 128
    blocks = edged.view(n, channels, edged.shape[2] // 8, 8, edged.shape[3] // 8, 8)
    blocks = torch.stack(_forward(blocks.unbind(5), 11, 0), dim=5)
    blocks = torch.stack(_forward(blocks.unbind(3), 15, 2), dim=3)
    table = steps.view(n, 1, 1, 8, 1, 8)
    divisors = table * 8
    sizes = torch.div(blocks.abs() + divisors // 2, divisors, rounding_mode="floor")
    blocks = sizes * blocks.sign() * table
    blocks = torch.stack(_backward(blocks.unbind(3), 11), dim=3)
    blocks = torch.stack(_backward(blocks.unbind(5), 18), dim=5)
    return (blocks + 128).clamp_(0, 255).reshape(edged.shape)[:, :, :height, :width]


def _rounded(sums: Tensor, bits: int) -> Tensor:
    return (sums + (1 << (bits - 1))) >> bits


def _forward(values: Sequence[Tensor], bits: int, plain_bits: int) -> list[Tensor]:
    """jfdctint.c: the frequencies of 8 values.

    Args:
        bits: number of bits to round off.
        plain_bits: number of bits to round off sums without factors; 0 to multiply by 4 instead.
    """
    v0, v1, v2, v3, v4, v5, v6, v7 = values
    sum0, sum1, sum2, sum3 = v0 + v7, v1 + v6, v2 + v5, v3 + v4
    d7, d6, d5, d4 = v0 - v7, v1 - v6, v2 - v5, v3 - v4
    e10, e13, e11, e12 = sum0 + sum3, sum0 - sum3, sum1 + sum2, sum1 - sum2
    plain = (e10 + e11, e10 - e11)
    f0, f4 = (_rounded(sums, plain_bits) if plain_bits else sums << 2 for sums in plain)
    z1 = (e12 + e13) * 4433
    f2, f6 = _rounded(z1 + e13 * 6270, bits), _rounded(z1 - e12 * 15137, bits)
    f7, f5, f3, f1 = (_rounded(sums, bits) for sums in _odd(d4, d5, d6, d7))
    return [f0, f1, f2, f3, f4, f5, f6, f7]


def _backward(values: Sequence[Tensor], bits: int) -> list[Tensor]:
    """jidctint.c: the 8 values from their frequencies."""
    f0, f1, f2, f3, f4, f5, f6, f7 = values
    z1 = (f2 + f6) * 4433
    e2, e3 = z1 - f6 * 15137, z1 + f2 * 6270
    e0, e1 = (f0 + f4) << 13, (f0 - f4) << 13
    e10, e13, e11, e12 = e0 + e3, e0 - e3, e1 + e2, e1 - e2
    o0, o1, o2, o3 = _odd(f7, f5, f3, f1)
    pairs = ((e10, o3), (e11, o2), (e12, o1), (e13, o0))
    sums = [even + odd for even, odd in pairs] + [even - odd for even, odd in reversed(pairs)]
    return [_rounded(each, bits) for each in sums]


def _odd(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The odd half of both transforms."""
    z5 = (a + c + b + d) * 9633
    z1, z2 = (a + d) * -7373, (b + c) * -20995
    z3, z4 = (a + c) * -16069 + z5, (b + d) * -3196 + z5
    return a * 2446 + z1 + z3, b * 16819 + z2 + z4, c * 25172 + z2 + z3, d * 12299 + z1 + z4
