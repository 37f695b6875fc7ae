"""Image properties read from the bytes before decoding."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch

from stateful_gpu_loader.decoders import JpegHeader, PngHeader, WebpHeader, probe
from tests.decoders.png_files import as_tensor, chunk, header
from tests.decoders.variants import ORIENTATIONS, by_pillow, exif, photo, pillow_variants
from tests.images import encode

VARIANTS = pillow_variants()
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def jpeg(data: torch.Tensor) -> JpegHeader:
    found = probe(data)
    assert isinstance(found, JpegHeader)
    return found


def jpeg_of_size(height: int, width: int, num_bytes: int) -> torch.Tensor:
    """Return a JPEG header with another size, followed by zeros."""
    raw = bytearray(encode(photo()).numpy().tobytes())
    frame = raw.index(b"\xff\xc0")
    raw[frame + 5 : frame + 9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return as_tensor(bytes(raw), bytes(num_bytes), b"\xff\xd9")


def huge_canvas() -> torch.Tensor:
    """Return a small animation whose canvas claims two gigabytes."""
    data = VARIANTS["webp animated offset"].clone()
    data[26] = 0xFF
    return data


@pytest.mark.parametrize("name", VARIANTS)
def test_format_and_size_are_those_of_the_decoded_image(name: str) -> None:
    """The transforms receive these sizes before anything is decoded."""
    found = probe(VARIANTS[name])
    assert found.format == name.split()[0]
    assert (found.height, found.width) == by_pillow(VARIANTS[name]).shape[:2]


@pytest.mark.parametrize("name", ["jpeg", "png", "webp"])
def test_orientation_is_read_from_every_format(name: str) -> None:
    """An orientation that does not exist is none."""
    for orientation in (*ORIENTATIONS, 0, 9, 65535):
        found = probe(encode(photo(20, 30), name, exif=exif(orientation)))
        assert found.orientation == (orientation if orientation in ORIENTATIONS else 1)
        assert (found.height, found.width) == (
            (30, 20) if orientation in (5, 6, 7, 8) else (20, 30)
        )
        assert found.stored_size == (20, 30)


@pytest.mark.parametrize("order", ["<", ">"])
def test_orientation_is_read_in_both_byte_orders(order: str) -> None:
    """A SHORT and a LONG, little and big endian. Other types are no orientation."""
    from struct import pack

    from stateful_gpu_loader.decoders.orientation import read_orientation

    start = {"<": b"II*\0", ">": b"MM\0*"}[order] + pack(order + "IH", 8, 1)
    assert read_orientation(start + pack(order + "HHIHH", 0x0112, 3, 1, 6, 0)) == 6
    assert read_orientation(start + pack(order + "HHII", 0x0112, 4, 1, 8)) == 8
    assert read_orientation(start + pack(order + "HHIHH", 0x0112, 2, 1, 6, 0)) == 1
    assert read_orientation(start + pack(order + "HHIHH", 0x0112, 3, 2, 6, 6)) == 1
    assert read_orientation(start) == 1


def test_jpeg_fields_tell_what_a_gpu_decoder_must_know() -> None:
    """Baseline or progressive, subsampling, and the meaning of the components."""
    image = photo()
    baseline = jpeg(encode(image, subsampling=2))
    assert (baseline.process, baseline.progressive, baseline.precision) == (0xC0, False, 8)
    assert (baseline.components, baseline.color, baseline.single_scan) == (3, "ycbcr", True)
    progressive = jpeg(encode(image, progressive=True))
    assert (progressive.process, progressive.progressive) == (0xC2, True)
    subsampling = [jpeg(encode(image, subsampling=kind)).subsampling for kind in range(3)]
    assert subsampling == ["4:4:4", "4:2:2", "4:2:0"]
    grey = jpeg(encode(image.convert("L")))
    assert (grey.components, grey.color, grey.subsampling) == (1, "grey", "4:0:0")
    assert jpeg(encode(image, keep_rgb=True)).color == "rgb"
    assert jpeg(encode(image.convert("CMYK"))).color == "cmyk"
    assert jpeg(VARIANTS["jpeg ycck"]).color == "ycck"


def test_fields_of_png_and_webp() -> None:
    found = [probe(VARIANTS[name]) for name in ("png rgba", "png palette 4 bit", "png grey")]
    fields = [(h.color_type, h.bit_depth, h.interlaced) for h in found if isinstance(h, PngHeader)]
    assert fields == [(6, 8, False), (3, 4, False), (0, 8, False)]
    names = ("webp lossy", "webp lossless alpha", "webp lossy alpha", "webp animated")
    found = [probe(VARIANTS[name]) for name in names]
    fields = [(h.alpha, h.animated) for h in found if isinstance(h, WebpHeader)]
    assert fields == [(False, False), (True, False), (True, False), (False, True)]


def test_bytes_that_lie_in_a_larger_tensor_are_read() -> None:
    """Sources may give views: of a memory map, or with a stride. A header is a value."""
    data = VARIANTS["jpeg 4:4:4"]
    inside = torch.cat([torch.zeros(5, dtype=torch.uint8), data])[5:]
    strided = data.repeat_interleave(2)[::2]
    headers = [probe(each) for each in (data, inside, strided)]
    assert headers == [headers[0]] * 3
    assert len(set(map(hash, headers))) == 1
    assert pickle.loads(pickle.dumps(headers[0])) == headers[0]


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (b"", "empty: 0 bytes"),
        (b"GIF89a" + bytes(20), "GIF is not supported. Remedy: convert"),
        (b"BM" + bytes(50), "BMP is not supported"),
        (b"II*\0" + bytes(50), "TIFF is not supported"),
        (b"\0\0\0\x20ftypavif", "AVIF is not supported"),
        (b"\0\0\0\x20ftypheic", "HEIC is not supported"),
        (b"\0\0\0\x0cjP  \r\n", "JPEG 2000 is not supported"),
        (b"RIFF\0\0\0\0WAVE", "not a JPEG, PNG or WebP: it starts with 52 49 46 46"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><title>404</title>", "text, not an image"),
        (b"\xff", "not a JPEG, PNG or WebP: it starts with ff"),
        (bytes(100), "not a JPEG, PNG or WebP"),
    ],
)
def test_what_is_no_image_of_ours_is_named(start: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        probe(as_tensor(start) if start else torch.empty(0, dtype=torch.uint8))


@pytest.mark.parametrize("name", ["jpeg 4:2:0", "jpeg progressive", "webp lossy", "webp animated"])
def test_every_truncation_is_refused_before_decoding(name: str) -> None:
    """JPEG and WebP mark their ends. nvJPEG would silently decode half a file."""
    data = VARIANTS[name]
    for length in range(data.numel()):
        with pytest.raises(ValueError, match=r"truncated|empty|not a JPEG|text|ends before"):
            probe(data[:length])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (jpeg_of_size(65_000, 65_000, 10**6), "decompression bomb"),
        (jpeg_of_size(20_000, 20_000, 100), "more than its bytes can hold"),
        (jpeg_of_size(0, 100, 100), "nothing to decode"),
        (as_tensor(SIGNATURE, header(2**31, 2**31, 8, 2, 0, 0, 0)), "decompression bomb"),
        (as_tensor(SIGNATURE, header(20_000, 20_000, 8, 2, 0, 0, 0)), "more than its bytes"),
        (as_tensor(SIGNATURE, header(0, 9, 8, 2, 0, 0, 0)), "nothing to decode"),
        (as_tensor(SIGNATURE, header(9, 9, 3, 2, 0, 0, 0)), "bit_depth = 3 and color_type = 2"),
        (as_tensor(SIGNATURE, header(9, 9, 8, 2, 0, 0, 2)), "interlacing = 2"),
        (as_tensor(SIGNATURE, header(9, 9, 8, 2, 0, 0, 0)), "no IDAT chunk"),
        (
            as_tensor(SIGNATURE, header(9, 9, 8, 2, 0, 0, 0), chunk(b"tEXt", b"") * 10_001),
            "more than 10000 chunks",
        ),
        (as_tensor(b"\xff\xd8", b"\xff\xfe\0\x02" * 10_001), "more than 10000 segments"),
        (huge_canvas(), "WebP canvas of 47 x 16711741 pixels with an image of 20 x 30"),
        (as_tensor(b"\xff\xd8\xff\xd9\0\0"), "ends before its first scan"),
        (as_tensor(b"\xff\xd8\xff\xda\0\x08", bytes(10)), "without a frame header"),
    ],
)
def test_impossible_headers_are_refused(data: torch.Tensor, reason: str) -> None:
    """No memory is allocated for an impossible size, and the time is bounded."""
    with pytest.raises(ValueError, match=reason):
        probe(data)


def test_what_is_no_bytes_is_a_type_error() -> None:
    for data in (torch.zeros(3), torch.zeros((1, 3), dtype=torch.uint8), torch.zeros(0)):
        with pytest.raises(TypeError, match="uint8 \\[num_bytes\\]"):
            probe(data)


def test_a_header_without_exif_differs_in_nothing_else() -> None:
    data = encode(photo(40, 30), exif=exif(6))
    found = probe(data)
    assert isinstance(found, JpegHeader)
    ((start, end),) = found.exif_spans
    shorter = probe(torch.cat([data[:start], data[end:]]))
    assert isinstance(shorter, JpegHeader)
    upright = {"height": found.height, "width": found.width, "orientation": 6}
    assert found.without_exif() == replace(shorter, **upright)


def test_a_header_knows_where_the_scan_starts() -> None:
    """A baseline scan's header ends with coefficients 0 to 63, and 0; the scan follows."""
    for data in (encode(photo(40, 30), exif=exif(6)), encode(photo(40, 30).convert("L"))):
        header = probe(data)
        assert isinstance(header, JpegHeader)
        assert data[header.scan_start - 3 : header.scan_start].tolist() == [0, 63, 0]
