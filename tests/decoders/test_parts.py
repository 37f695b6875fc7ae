"""Parts of images have the bits of the whole image, and its verdict."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stateful_gpu_loader.decoders import ImageHeader, make_decoder, nvimgcodec, probe
from stateful_gpu_loader.decoders.decoder import Box, part_of
from stateful_gpu_loader.decoders.header import JpegHeader
from stateful_gpu_loader.decoders.jpeg import is_one_clean_scan
from stateful_gpu_loader.decoders.nvimgcodec import LEAST_SIDE, NvimgcodecDecoder
from stateful_gpu_loader.errors import LoaderError
from tests.datasets.storage.processes import in_a_fork
from tests.decoders.rare_jpegs import RARE
from tests.decoders.variants import by_rule, photo, small_variants
from tests.images import encode
from tests.prepared_processes import run_until_exit

pytest.importorskip("nvidia.nvimgcodec")

TORCHVISION = make_decoder("torchvision")
SIDES = (1, 7, 8, 9, 16, 17, 33, 47)


def boxes(height: int, width: int) -> Iterator[Box]:
    """Return boxes at every border, and around the blocks of 8 and 16 pixels inside."""

    def spans(side: int) -> list[tuple[int, int]]:
        edges = sorted({edge for edge in (0, 1, 8, 15, 16, side // 2, side) if edge <= side})
        return list(itertools.combinations(edges, 2))

    for (top, bottom), (left, right) in itertools.product(spans(height), spans(width)):
        yield top, left, bottom - top, right - left


def check_parts(data: torch.Tensor, *, decoded: bool) -> None:
    """Compare parts with the whole image, and see which decoder was used.

    Args:
        decoded: whether nvImageCodec decodes all parts but the whole. Otherwise they are cut out
            of the whole, and every seventh is compared.
    """
    header, expected, decoder = probe(data), by_rule(data), NvimgcodecDecoder()
    size = (header.height, header.width)
    for box in itertools.islice(boxes(*size), 0, None, 1 if decoded else 7):
        part = decoder.decode_part(data, header, box, None)
        assert torch.equal(part, part_of(expected, box)), box
        if decoded and box[2:] != size and min(box[2:]) >= LEAST_SIDE:
            assert isinstance(header, JpegHeader)
            assert nvimgcodec._decode_part(data, header, box) is not None, box


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize(
    "options", [{}, {"restart_marker_blocks": 3}, {"progressive": True}], ids=str
)
def test_a_part_has_the_bits_of_the_whole_image(subsampling: int, options: dict[str, Any]) -> None:
    for height, width in itertools.product(SIDES[::2], SIDES[1::2]):
        data = encode(photo(height, width), quality=85, subsampling=subsampling, **options)
        check_parts(data, decoded="progressive" not in options)


SMALL = small_variants()
BY_PARTS = {
    name
    for name in SMALL
    if name.startswith("jpeg")
    and not any(other in name for other in ("progressive", "rgb", "cmyk", "ycck"))
}


@pytest.mark.parametrize("name", [*SMALL, *RARE])
def test_every_format_has_its_parts(name: str) -> None:
    """Turned images too; formats that nvImageCodec does not decode are cut from the whole."""
    data, header = (SMALL | RARE)[name], probe((SMALL | RARE)[name])
    assert name in SMALL or (isinstance(header, JpegHeader) and header.subsampling == name)
    check_parts(data, decoded=name in BY_PARTS or name in RARE)


def verdict(decoder: Any, data: torch.Tensor, header: ImageHeader, box: Box) -> Any:
    """Return the part, or the reason why the image is refused."""
    try:
        return decoder.decode_part(data, header, box, None)
    except ValueError as error:
        return str(error)


def check_damaged(data: torch.Tensor) -> None:
    """Check that a damaged file gives torchvision's pixels of the whole, or its refusal."""
    try:
        header = probe(data)
    except ValueError:
        return
    height, width = header.height, header.width
    decoder = NvimgcodecDecoder()
    for box in (
        (0, 0, max(1, height // 3), width),
        (height // 2, width // 3, height - height // 2, max(1, width // 2)),
        (height - 1, 0, 1, 1),
    ):
        expected = verdict(TORCHVISION, data, header, box)
        found = verdict(decoder, data, header, box)
        if isinstance(expected, str):
            assert found == expected
        else:
            assert torch.equal(found, expected), box


KINDS = ["jpeg 4:4:4", "jpeg 4:2:2", "jpeg 4:2:0", "jpeg restart markers", "jpeg grey"]
SMALL["jpeg large"] = encode(photo(200, 240), quality=90)
"""libjpeg reads the last 3 KB of a scan by different code."""


@pytest.mark.parametrize("name", [*KINDS, "jpeg large"])
def test_damage_is_judged_by_the_whole_image(name: str) -> None:
    """A part above the damage is refused, too. A part below it shows what the whole shows."""
    good = SMALL[name]
    generator = np.random.default_rng(0)
    start = probe(good).scan_start  # type: ignore[attr-defined]
    for _ in range(60):
        data = good.clone()
        where = int(generator.integers(start, good.numel() - 2))
        length = int(generator.integers(1, 4))
        noise = generator.choice([0x00, 0x5A, 0xD1, 0xC4, 0xDA, 0xFF], length)
        data[where : where + length] = torch.from_numpy(noise.astype(np.uint8))
        check_damaged(data)
    for marker in (0xC0, 0xC4, 0xD3, 0xDA, 0xE1, 0xFE):
        data = good.clone()
        data[-20:-18] = torch.tensor([0xFF, marker], dtype=torch.uint8)
        check_damaged(data)
        check_damaged(torch.cat([good[:-40], good[-2:]]))
        check_damaged(torch.cat([good[:-40], good[-60:]]))


@pytest.mark.fuzz
@given(
    st.sampled_from(KINDS),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=8),
    st.sampled_from([1.0, 0.02, 0.1]),
)
@settings(deadline=None, max_examples=400)
def test_any_damage_is_judged_by_the_whole_image(
    name: str, changes: list[tuple[float, int]], reach: float
) -> None:
    data = SMALL[name].clone()
    for where, value in changes:
        data[int(where * reach * (data.numel() - 1))] = value
    check_damaged(data)


def with_scan(scan: bytes) -> tuple[npt.NDArray[np.uint8], JpegHeader]:
    data = SMALL["jpeg 4:2:0"]
    header = probe(data)
    assert isinstance(header, JpegHeader)
    start = data[: header.scan_start].numpy().tobytes()
    return np.frombuffer(start + scan, dtype=np.uint8), header


@pytest.mark.parametrize(
    ("scan", "is_clean"),
    [
        (b"\x12\xff\x00\x34\xff\xd9", True),
        (b"\x12\xff\xd0\x34\xff\xd1\x12\xff\xd9", True),
        (b"\x12\xff\xd9\xff\xd8\xff\xe0 a second image", True),
        (b"\x12\xff\xe1\x34\xff\xd9", False),
        (b"\x12\xff\xc4\x34\xff\xd9", False),
        (b"\x12\xff\xff\x00\x34\xff\xd9", False),
        (b"\x12\xff\xff\xd9", False),
        (b"\x12\x34\xff\xda\x00\x08\xff\xd9", False),
    ],
)
def test_only_restart_markers_may_interrupt_a_scan(scan: bytes, is_clean: bool) -> None:
    assert is_one_clean_scan(*with_scan(scan)) is is_clean


def test_what_nvimgcodec_refuses_is_decoded_by_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    data, box = SMALL["jpeg 4:2:0"], (1, 2, 13, 14)
    for outcome in ({"return_value": None}, {"side_effect": RuntimeError("no codec")}):
        library_decoder = Mock(**{f"decode.{name}": value for name, value in outcome.items()})
        monkeypatch.setattr(nvimgcodec, "_of_this_thread", lambda made=library_decoder: made)
        part = NvimgcodecDecoder().decode_part(data, probe(data), box, None)
        assert torch.equal(part, part_of(by_rule(data), box))
        assert library_decoder.decode.called


def test_a_library_without_regions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvimgcodec, "_library", lambda: object())
    with pytest.raises(LoaderError, match=r"decodes no regions.*Remedy"):
        NvimgcodecDecoder()


DAMAGED_HEADER = """
import os
os.environ.pop("PYNVIMGCODEC_VERBOSITY", None)
os.environ.update({environment})
import torch
from stateful_gpu_loader.decoders import probe
from stateful_gpu_loader.decoders.nvimgcodec import NvimgcodecDecoder
from tests.decoders.variants import photo
from tests.images import encode
data = encode(photo(47, 61))
tables = bytes(data.tolist()).find(b"\\xff\\xdb")
data[tables + 4] = 0x55
try:
    NvimgcodecDecoder().decode_part(data, probe(data), (1, 2, 30, 40), None)
except ValueError:
    raise SystemExit(3)
"""


@pytest.mark.parametrize(
    ("environment", "warns"), [({}, False), ({"PYNVIMGCODEC_VERBOSITY": "2"}, True)]
)
def test_nvimgcodec_warns_of_damaged_headers_only_if_asked(
    environment: dict[str, str], warns: bool
) -> None:
    code, errors = run_until_exit(DAMAGED_HEADER.format(environment=environment))
    assert code == 3
    assert "Bogus DQT" in errors  # by libjpeg
    assert ("pynvimgcodec" in errors) is warns


def parts(decoder: NvimgcodecDecoder) -> list[torch.Tensor]:
    data = SMALL["jpeg 4:2:0"]
    return [decoder.decode_part(data, probe(data), box, None) for box in [*boxes(47, 61)][::9]]


def test_each_thread_and_copy_has_a_decoder_of_its_own() -> None:
    decoder = NvimgcodecDecoder()
    expected = parts(decoder)
    assert all(map(torch.equal, parts(pickle.loads(pickle.dumps(decoder))), expected))
    with ThreadPoolExecutor(4) as pool:
        of_threads = list(pool.map(parts, [decoder] * 8))
        made = set(pool.map(lambda number: id(nvimgcodec._of_this_thread()), range(16)))
    assert all(map(torch.equal, itertools.chain(*of_threads), expected * 8))
    assert id(nvimgcodec._of_this_thread()) not in made


def test_a_forked_child_decodes_the_same() -> None:
    """With the decoder of its parent's thread, which has no threads of its own."""
    before = len(list(Path("/proc/self/task").iterdir()))
    decoder = NvimgcodecDecoder()
    expected = parts(decoder)
    assert len(list(Path("/proc/self/task").iterdir())) == before
    assert in_a_fork(lambda: all(map(torch.equal, parts(decoder), expected))) == 0


def test_only_libjpeg_prints_what_it_prints_for_the_by_rule(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """nvImageCodec prints nothing for damage in the scan."""
    for name in KINDS:
        data = SMALL[name].clone()
        for box in [*boxes(47, 61)][::9]:
            NvimgcodecDecoder().decode_part(data, probe(data), box, None)
        assert capfd.readouterr() == ("", "")
        data[-90:-60] = 0
        check_damaged(data)
        printed = capfd.readouterr()
        assert printed.out == ""
        assert all(line.startswith("Corrupt JPEG data:") for line in printed.err.splitlines())
