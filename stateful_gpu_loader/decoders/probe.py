"""probe: format and size of an encoded image, without decoding it."""

from __future__ import annotations

import torch

from stateful_gpu_loader.decoders.header import ImageHeader
from stateful_gpu_loader.decoders.jpeg import read_jpeg_header
from stateful_gpu_loader.decoders.png import PNG_SIGNATURE, read_png_header
from stateful_gpu_loader.decoders.ppm import PPM_SIGNATURE, read_ppm_header
from stateful_gpu_loader.decoders.webp import read_webp_header

UNSUPPORTED = (
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\0\x0cJXL ", "JPEG XL"),
    (b"8BPS", "Photoshop"),
    (b"%PDF", "PDF"),
    (b"\x1f\x8b", "gzip"),
    (b"PK\x03\x04", "zip"),
)
BRANDS = {b"avif": "AVIF", b"avis": "AVIF", b"heic": "HEIC", b"heix": "HEIC", b"mif1": "HEIF"}


def probe(data: torch.Tensor | memoryview) -> ImageHeader:
    """Return the header of an encoded image: a pure function of its bytes, in microseconds.

    Args:
        data: uint8 [num_bytes] on the CPU, or a view of the bytes.

    Returns:
        A :class:`JpegHeader`, :class:`PngHeader`, :class:`WebpHeader` or :class:`PpmHeader`, with
        the height and width of the decoded image, orientation applied.

    Raises:
        ValueError: the bytes are not a JPEG, PNG, WebP or binary PPM, end too early, or claim more
            pixels than they can hold.
        TypeError: ``data`` has another type, dtype, shape or device.

    >>> probe(torch.tensor(list(b"GIF89a"), dtype=torch.uint8))
    Traceback (most recent call last):
        ...
    ValueError: GIF is not supported. Remedy: convert it to JPEG, PNG or WebP
    """
    if isinstance(data, memoryview):
        view = data
    elif data.dtype != torch.uint8 or data.ndim != 1 or not data.is_cpu:
        raise TypeError(
            f"encoded bytes are uint8 [num_bytes] on the CPU, got {data.dtype} "
            f"{list(data.shape)} on {data.device}"
        )
    else:
        view = data.contiguous().numpy().data
    magic = bytes(view[:12])
    if magic[:3] == b"\xff\xd8\xff":
        return read_jpeg_header(view)
    if magic[:8] == PNG_SIGNATURE:
        return read_png_header(view)
    if magic[:4] == b"RIFF" and magic[8:] == b"WEBP":
        return read_webp_header(view)
    if magic[:2] == PPM_SIGNATURE and magic[2:3] in b" \t\r\n\v\f#":
        return read_ppm_header(view)
    raise ValueError(_why_not(bytes(view[:64])))


def _why_not(head: bytes) -> str:
    if not head:
        return "empty: 0 bytes. Remedy: copy the file again"
    for magic, name in UNSUPPORTED:
        if head.startswith(magic):
            return f"{name} is not supported. Remedy: convert it to JPEG, PNG or WebP"
    if head[4:8] == b"ftyp":
        name = BRANDS.get(head[8:12], "an ISO media file")
        return f"{name} is not supported. Remedy: convert it to JPEG, PNG or WebP"
    if head.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not the image. Remedy: git lfs pull"
    if all(byte in b"\t\r\n" or 32 <= byte < 127 for byte in head):
        return f"text, not an image: it starts with {head[:40]!r}. Remedy: remove it"
    return f"not a JPEG, PNG or WebP: it starts with {head[:16].hex(' ')}. Remedy: remove it"
