"""Damaged and hostile files give the right pixels or a ValueError with a reason, never a crash."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stateful_gpu_loader import FolderSource, LoaderError, StatefulGPULoader
from stateful_gpu_loader.decoders import Decoder, available, make_decoder, probe, rule, torchvision
from tests.conformance import same
from tests.decoders.png_files import as_tensor, chunk, header, write_png
from tests.decoders.variants import NO_MEMORY, WITHOUT_CAUSE, photo, small_variants
from tests.images import encode

SMALL = small_variants()
MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR", b"RIFF\x40\0\0\0WEBPVP8X", b"")
SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(params=available())
def decoder(request: pytest.FixtureRequest) -> Decoder:
    return make_decoder(request.param)


def right_or_refused(decoder: Decoder, data: torch.Tensor) -> bool:
    """Return whether the bytes were decoded; check that the result is repeatable."""
    results: list[torch.Tensor | None] = []
    for _ in range(2):
        try:
            found = probe(data)
            image = decoder.decode(data, found)
        except ValueError:
            results.append(None)
        else:
            assert image.shape == (3, found.height, found.width)
            assert image.dtype == torch.uint8
            results.append(image)
    first, second = results
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert torch.equal(first, second)
    return first is not None


@given(st.sampled_from(MAGIC), st.binary(max_size=300))
@settings(deadline=None, max_examples=200)
def test_any_bytes_are_refused(magic: bytes, rest: bytes) -> None:
    data = np.frombuffer(magic + rest, dtype=np.uint8).copy()
    with pytest.raises(ValueError, match=r"\w"):
        probe(torch.from_numpy(data))


@pytest.mark.fuzz
@given(
    st.sampled_from(sorted(SMALL)),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=8),
    st.sampled_from([1.0, 0.02, 0.1]),
)
@settings(deadline=None, max_examples=300)
def test_changed_bytes_do_no_harm(
    name: str, changes: list[tuple[float, int]], reach: float
) -> None:
    """Anywhere in the file, or near its start, where the structure is."""
    data = SMALL[name].clone()
    for where, value in changes:
        data[int(where * reach * (data.numel() - 1))] = value
    for backend in available():
        right_or_refused(make_decoder(backend), data)


@given(st.sampled_from(sorted(SMALL)), st.floats(0, 1))
@settings(deadline=None, max_examples=100)
def test_truncated_files_are_refused(name: str, where: float) -> None:
    data = SMALL[name]
    cut = data[: int(where * (data.numel() - 20))]
    for backend in available():
        if right_or_refused(make_decoder(backend), cut):
            # Trailing bytes after the image may be lost, as may a PNG's end after its pixels.
            assert name == "jpeg trailing bytes" or name.startswith("png")


@given(
    st.binary(max_size=400).map(lambda text: bytes(byte % 6 for byte in text)),
    st.integers(1, 4),
    st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_png_pixels_of_any_content_do_no_harm(
    pixels: bytes, channels: int, interlaced: bool
) -> None:
    """Even with valid checksums, unknown filters and missing rows are found.

    torchvision 0.29 by itself ends the process with SIGSEGV on such a file.
    """
    color_type = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    data = as_tensor(
        SIGNATURE,
        header(7, 9, 8, color_type, 0, 0, int(interlaced)),
        chunk(b"IDAT", zlib.compress(pixels)),
        chunk(b"IEND", b""),
    )
    for backend in available():
        right_or_refused(make_decoder(backend), data)


ROWS = bytes(7 * (1 + 9 * 3))
RGB_7_BY_9 = header(7, 9, 8, 2, 0, 0, 0)
IDAT = chunk(b"IDAT", zlib.compress(ROWS))


def test_damaged_png_pixels_are_named(decoder: Decoder) -> None:
    for parts, reason in (
        ((RGB_7_BY_9, chunk(b"IDAT", b"no deflate")), "cannot be inflated"),
        ((RGB_7_BY_9, chunk(b"IDAT", zlib.compress(ROWS[:-1]))), "195 of 196 bytes of pixels"),
        ((RGB_7_BY_9, chunk(b"IDAT", zlib.compress(b"\x05" + ROWS[1:]))), "unknown filter 5"),
        ((RGB_7_BY_9, IDAT[:-4] + b"\0\0\0\0"), "fails its checksum"),
        ((RGB_7_BY_9, pack(">I4s", 2**31, b"IDAT") + bytes(50)), "truncated PNG"),
        ((RGB_7_BY_9, chunk(b"CgBI", b""), IDAT), "unknown critical chunk b'CgBI'"),
        ((header(7, 9, 8, 3, 0, 0, 0), IDAT), "palette of 0 bytes"),
    ):
        data = as_tensor(SIGNATURE, *parts, chunk(b"IEND", b""))
        with pytest.raises(ValueError, match=reason):
            decoder.decode(data, probe(data))


def test_png_of_very_many_chunks_is_read(decoder: Decoder) -> None:
    """Large PNGs come in pieces of 8 KiB. Only the data before the pixels is limited."""
    rows = zlib.compress(b"".join(b"\0" + row.tobytes() for row in np.asarray(photo(7, 9))))
    pieces = [chunk(b"IDAT", rows[i : i + 1]) for i in range(len(rows))]
    empty = chunk(b"IDAT", b"") * 11_000
    data = as_tensor(SIGNATURE, RGB_7_BY_9, pieces[0], empty, *pieces[1:])
    image = decoder.decode(data, probe(data))
    np.testing.assert_array_equal(image.permute(1, 2, 0), np.asarray(photo(7, 9)))


def test_png_whose_palette_is_too_short_shows_black(decoder: Decoder) -> None:
    """An index beyond the palette is black, as in libpng and Pillow."""
    data = as_tensor(
        SIGNATURE,
        header(1, 3, 8, 3, 0, 0, 0),
        chunk(b"PLTE", bytes([9, 8, 7, 6, 5, 4])),
        chunk(b"IDAT", zlib.compress(bytes([0, 0, 1, 200]))),
        chunk(b"IEND", b""),
    )
    image = decoder.decode(data, probe(data))
    assert image.permute(1, 2, 0).tolist() == [[[9, 8, 7], [6, 5, 4], [0, 0, 0]]]


def test_png_with_a_broken_profile_prints_nothing(
    decoder: Decoder, capfd: pytest.CaptureFixture[str]
) -> None:
    """libpng would write 'iCCP: known incorrect sRGB profile' and the like to stderr."""
    values = np.asarray(photo()).astype(np.uint16)
    broken = chunk(b"iCCP", b"name\0\0" + zlib.compress(b"no profile")) + chunk(b"tIME", b"?")
    data = write_png(values, 8, chunks=broken)
    image = decoder.decode(data, probe(data))
    np.testing.assert_array_equal(image.permute(1, 2, 0), values)
    assert capfd.readouterr() == ("", "")


def test_damage_after_the_header_names_the_reason(decoder: Decoder) -> None:
    """In a progressive file: of other files DALI shows the intact start, then grey.

    The header of another file is refused.
    """
    data, other = encode(photo(), quality=90, progressive=True), probe(encode(photo(20, 20)))
    with pytest.raises(
        ValueError, match=r"decoded to \[3, 47, 61\], its header says \[3, 20, 20\]"
    ):
        decoder.decode(data, other)
    data[-400:-2] = torch.tensor([0xFF, 0xC0], dtype=torch.uint8).repeat(199)
    with pytest.raises(ValueError, match=r"^JPEG cannot be decoded: [A-Z][^/]*$"):
        decoder.decode(data, probe(data))


def failing(*messages: str) -> Any:
    """An operator that fails with each message in turn, and then works."""
    left = list(messages)

    def decode(data: torch.Tensor, mode: int) -> torch.Tensor:
        if left:
            raise RuntimeError(left.pop(0))
        pixels: torch.Tensor = torch.ops.image.decode_jpeg(data, mode)
        return pixels

    return {"jpeg": decode}


def test_want_of_memory_and_failures_without_a_cause_are_no_faults_of_the_bytes() -> None:
    """A sample must not be replaced because the machine was short of memory.

    torch 2.11 does not say why an allocation fails.
    """
    data = encode(photo())
    for message in NO_MEMORY:
        with pytest.raises(RuntimeError, match=re.escape(message[:20])) as raised:
            rule.decode_by_rule(failing(message), data, probe(data))
        assert not isinstance(raised.value, LoaderError)
    for message in WITHOUT_CAUSE:
        with pytest.raises(LoaderError, match=r"does not say why: .*ops\.h.*torch >= 2\.13"):
            rule.decode_by_rule(failing(message), data, probe(data))


def test_memory_is_asked_for_before_an_image_is_called_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libwebp and torchvision's PNG reader report want of memory like bad bytes."""
    sizes: list[int] = []

    def full(size: int, **arguments: Any) -> torch.Tensor:
        sizes.append(size)
        raise RuntimeError(NO_MEMORY[0])

    data = encode(photo(40, 50))
    with pytest.raises(ValueError, match=r"^JPEG cannot be decoded: Internal error\.$"):
        rule.decode_by_rule(failing("Internal error."), data, probe(data))
    monkeypatch.setattr(rule.torch, "empty", full)
    with pytest.raises(RuntimeError, match="allocate memory"):
        rule.decode_by_rule(failing("Internal error."), data, probe(data))
    assert sizes[0] > 40 * 50 * 3


def test_no_sample_is_replaced_for_want_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the pixels would depend on the memory that other programs use."""
    (tmp_path / "a").mkdir()
    for i in range(4):
        (tmp_path / "a" / f"{i}.jpg").write_bytes(bytes(encode(photo()).numpy()))
    operators = failing()
    monkeypatch.setattr(torchvision, "_operators", lambda: operators)
    expected, loader = (
        StatefulGPULoader(
            FolderSource(tmp_path), batch_size=2, decoder="torchvision", on_bad_sample="replace"
        )
        for _ in range(2)
    )
    expected = list(expected)
    operators = failing(WITHOUT_CAUSE[0])
    with pytest.raises(LoaderError, match="not counted as a bad sample"):
        next(iter(loader))
    assert same(list(loader), expected)
    assert len(loader.bad_samples) == 0
