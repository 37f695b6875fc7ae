"""A small real image in every variant of every format, and its expected pixels."""

from __future__ import annotations

import functools
import io
from collections.abc import Iterator
from struct import pack
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps

from stateful_gpu_loader.decoders import make_decoder, probe
from stateful_gpu_loader.decoders.batch_rule import is_common_jpeg
from tests.decoders.png_files import as_tensor, chunk, write_png
from tests.images import encode, photograph

Variant = tuple[torch.Tensor, npt.NDArray[np.uint8]]
"""The encoded bytes, and the RGB pixels [height, width, 3] that the rule requires."""

ORIENTATIONS = range(1, 9)
_TORCHVISION = make_decoder("torchvision")


def by_pillow(data: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return the first frame as Pillow shows it, orientation applied, alpha dropped."""
    image = Image.open(io.BytesIO(data.numpy().tobytes()))
    upright = ImageOps.exif_transpose(image)
    # Pillow's warning asks for this step; the colours under transparent pixels stay.
    if "transparency" in upright.info:
        upright = upright.convert("RGBA")
    return np.asarray(upright.convert("RGB"))


def photo(height: int = 47, width: int = 61) -> Image.Image:
    """Return a piece of a photograph. Odd sizes give partial blocks."""
    return photograph("chelsea").crop((150, 100, 150 + width, 100 + height))


def with_alpha(image: Image.Image) -> Image.Image:
    """Add alpha from 0 to 255, left to right; colours stay under transparent pixels."""
    ramp = np.linspace(0, 255, image.width).round().astype(np.uint8)
    translucent = image.copy()
    translucent.putalpha(Image.fromarray(np.tile(ramp, (image.height, 1))))
    return translucent


def exif(orientation: int) -> Image.Exif:
    """Return the EXIF block of a camera: several tags, the orientation among them."""
    tags = Image.Exif()
    tags[0x010F] = "Maker"
    tags[0x0112] = orientation
    tags[0x0131] = "Software"
    return tags


def by_rule(data: torch.Tensor) -> torch.Tensor:
    """Return the pixels that torchvision decodes on the CPU, which is the rule."""
    return _TORCHVISION.decode(data, probe(data))


def small_variants() -> dict[str, torch.Tensor]:
    """Return the variants that Pillow can write without those of 20,000 rows."""
    return {name: data for name, data in pillow_variants().items() if "tall" not in name}


def common_jpegs() -> dict[str, torch.Tensor]:
    """Return the variants that GPU decoders take."""
    return {name: data for name, data in pillow_variants().items() if is_common_jpeg(probe(data))}


@functools.cache
def pillow_variants() -> dict[str, torch.Tensor]:
    """Return the variants that Pillow can write, with its own pixels as expected values."""
    image, grey = photo(), photo().convert("L")
    palette = image.quantize(200)
    frames = [photo(40, 56), photograph("coffee").crop((0, 0, 56, 40))]
    animation: dict[str, Any] = {"save_all": True, "append_images": frames[1:], "lossless": True}
    cmyk = encode(image.convert("CMYK"), quality=90)
    variants = {
        "jpeg 4:4:4": encode(image, quality=90, subsampling=0),
        "jpeg 4:2:2": encode(image, quality=80, subsampling=1),
        "jpeg 4:2:0": encode(image, quality=60, subsampling=2),
        "jpeg progressive": encode(image, quality=85, progressive=True),
        "jpeg restart markers": encode(image, restart_marker_blocks=2),
        "jpeg grey": encode(grey, quality=85),
        "jpeg grey progressive": encode(grey, progressive=True),
        "jpeg rgb": encode(image, keep_rgb=True),
        "jpeg cmyk": cmyk,
        "jpeg cmyk progressive": encode(image.convert("CMYK"), progressive=True),
        "jpeg ycck": _as_ycck(cmyk),
        "jpeg trailing bytes": torch.cat([encode(image), as_tensor(b"trailer" * 9)]),
        "jpeg comment and xmp": _with_segments(
            encode(image), (0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>"), (0xFE, b"comment")
        ),
        "png rgb": encode(image, "png"),
        "png grey": encode(grey, "png"),
        "png rgba": encode(with_alpha(image), "png"),
        "png grey alpha": encode(with_alpha(image).convert("LA"), "png"),
        "png 1 bit": encode(image.convert("1"), "png"),
        "png palette": encode(palette, "png"),
        "png palette 4 bit": encode(image.quantize(13), "png"),
        "png palette 1 bit": encode(image.quantize(2), "png"),
        "png palette transparent": encode(palette, "png", transparency=bytes(range(200))),
        "png rgb transparent": encode(image, "png", transparency=image.getpixel((3, 3))),
        "png grey transparent": encode(grey, "png", transparency=grey.getpixel((3, 3))),
        "webp lossy": encode(image, "webp", quality=80),
        "webp lossless": encode(image, "webp", lossless=True),
        "webp lossy alpha": encode(with_alpha(image), "webp", quality=80, exact=True),
        "webp lossless alpha": encode(with_alpha(image), "webp", lossless=True, exact=True),
        "webp animated": encode(frames[0], "webp", **animation),
        "webp animated lossy": encode(frames[0], "webp", save_all=True, append_images=frames[1:]),
        "webp animated offset": _offset_animation(),
        "webp profile": encode(image, "webp", icc_profile=b"profile"),
        "jpeg 1x1": encode(photo(1, 1)),
        "png 1x1": encode(photo(1, 1), "png"),
        "webp 1x1": encode(photo(1, 1), "webp"),
        "jpeg tall": encode(photo(30, 20).resize((20, 20_000))),
        "png tall": encode(photo(30, 20).resize((20, 20_000)), "png"),
    }
    for orientation in ORIENTATIONS:
        for name in ("jpeg", "png", "webp"):
            data = encode(image, name, exif=exif(orientation))
            variants[f"{name} orientation {orientation}"] = data
    variants["jpeg cmyk orientation 6"] = encode(image.convert("CMYK"), exif=exif(6))
    variants["png palette orientation 7"] = encode(palette, "png", exif=exif(7))
    variants["webp alpha orientation 8"] = encode(with_alpha(image), "webp", exif=exif(8))
    variants["webp animated orientation 6"] = encode(frames[0], "webp", exif=exif(6), **animation)
    return variants


@functools.cache
def variants() -> dict[str, Variant]:
    """Return every variant by name: Pillow's, and the PNGs that are written by hand."""
    return dict(_variants())


def _variants() -> Iterator[tuple[str, Variant]]:
    for name, data in pillow_variants().items():
        yield name, (data, by_pillow(data))
    image = np.asarray(photo()).astype(np.int64)
    noise = np.random.default_rng(0).integers(0, 257, image.shape)
    deep = np.minimum(image * 257 + noise - 128, 65535).clip(0).astype(np.uint16)
    alpha = np.full((*deep.shape[:2], 1), 777, dtype=np.uint16)
    values = {
        "rgb": deep,
        "grey": deep[..., :1],
        "rgb alpha": np.concatenate([deep, alpha], axis=2),
        "grey alpha": np.concatenate([deep[..., :1], alpha], axis=2),
    }
    for name, sixteen in values.items():
        shown = np.round(sixteen[..., : 3 if "rgb" in name else 1] * (255 / 65535))
        expected = np.broadcast_to(shown, deep.shape).astype(np.uint8)
        for interlaced in (False, True):
            data = write_png(sixteen, 16, interlaced=interlaced)
            yield f"png 16 bit {name}{' interlaced' * interlaced}", (data, expected)
    for bits in (1, 2, 4, 8):
        grey = (image[..., :1] >> 8 - bits).astype(np.uint16)
        shown = np.broadcast_to(grey * (255 // (2**bits - 1)), deep.shape).astype(np.uint8)
        for interlaced in (False, True):
            data = write_png(grey, bits, interlaced=interlaced)
            yield f"png grey {bits} bit{' interlaced' * interlaced}", (data, shown)
    gamma = chunk(b"gAMA", pack(">I", 100_000)) + chunk(b"bKGD", bytes(6))
    plain = image.astype(np.uint16)
    yield "png gamma", (write_png(plain, 8, chunks=gamma), image.astype(np.uint8))
    tiny = write_png(plain[:2, :3], 8, interlaced=True)
    yield "png 2x3 interlaced", (tiny, image[:2, :3].astype(np.uint8))


def _as_ycck(cmyk: torch.Tensor) -> torch.Tensor:
    """Return the same coefficients under an Adobe marker that says YCCK."""
    data = cmyk.clone()
    data[data.numpy().tobytes().index(b"Adobe") + 11] = 2
    return data


def _with_segments(jpeg: torch.Tensor, *segments: tuple[int, bytes]) -> torch.Tensor:
    parts = [bytes([0xFF, marker]) + pack(">H", 2 + len(text)) + text for marker, text in segments]
    return torch.cat([jpeg[:2], as_tensor(*parts), jpeg[2:]])


def _offset_animation() -> torch.Tensor:
    """Return an animation whose first frame lies in the middle of a larger canvas."""
    still = encode(photo(20, 30), "webp", lossless=True).numpy().tobytes()

    def bits24(*numbers: int) -> bytes:
        return b"".join(pack("<I", number)[:3] for number in numbers)

    def riff(kind: bytes, payload: bytes) -> bytes:
        return kind + pack("<I", len(payload)) + payload + b"\0" * (len(payload) % 2)

    frame = riff(b"ANMF", bits24(4, 3, 29, 19, 100) + b"\0" + still[12:])
    body = (
        b"WEBP"
        + riff(b"VP8X", b"\x02\0\0\0" + bits24(60, 46))
        + riff(b"ANIM", b"\xff\xff\xff\xff\0\0")
        + frame
        + frame
    )
    return as_tensor(riff(b"RIFF", body))


_IN_TORCH = (
    'torch_call_dispatcher( "aten::empty", "memory_format", stack.data(), TORCH_ABI_VERSION) API '
    "call failed at /__w/_temp/lib/python3.11/site-packages/torch/include/torch/csrc/stable/ops.h, "
    "line 291"
)
WITHOUT_CAUSE = (_IN_TORCH, f"{_IN_TORCH}\nException raised from throw_exception")
"""torchcodec's messages under torch 2.11 when an allocation fails."""

NO_MEMORY = (
    "[enforce fail at alloc_cpu.cpp:127] data. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 5 bytes. Error code 12 (Cannot allocate memory) (originally from "
    f"{_IN_TORCH})",
    "Insufficient memory (case 4)",
    "Out of memory",
    "std::bad_alloc",
)
"""Messages for want of memory: torch from 2.13 on, libjpeg, libpng, and C++."""

WITH_CAUSE = f"shape '[3]' is invalid for input of size 4 (originally from {_IN_TORCH})"
