"""Files read from start to end, decompressed, and their damage."""

from __future__ import annotations

import gc
import gzip
import sys
from pathlib import Path

import fsspec
import numpy as np
import pytest

from stateful_gpu_loader.datasets.storage.streams import damage_errors, is_compressed, open_stream
from stateful_gpu_loader.errors import MissingDependency
from tests.datasets import compression
from tests.datasets.storage.processes import open_descriptors

CONTENT = np.random.default_rng(0).integers(0, 8, 300_000, dtype=np.uint8).tobytes()
COMPRESS = {"": bytes, ".tgz": gzip.compress, ".GZ": gzip.compress, **compression.COMPRESS}


def written(folder: Path, ending: str, data: bytes) -> str:
    path = folder / f"a{ending}"
    path.write_bytes(data)
    return str(path)


@pytest.mark.fuzz
@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize("protocol", ["", "file://", "memory://"])
def test_the_content_comes_whole_and_in_pieces(tmp_path: Path, ending: str, protocol: str) -> None:
    """Several compressed parts in a row are one content, as ``cat`` joins them."""
    half = len(CONTENT) // 2
    data = COMPRESS[ending](CONTENT[:half]) + COMPRESS[ending](CONTENT[half:])
    path = written(tmp_path, ending, data)
    url = f"{protocol}{path}"
    if protocol == "memory://":
        fsspec.filesystem("memory").pipe(url, data)
    with open_stream(url) as stream:
        assert stream.read() == CONTENT
    with open_stream(url) as stream:
        pieces, target = [stream.read(7)], bytearray(100_000)
        while (size := stream.readinto(target)) > 0:  # type: ignore[attr-defined]
            pieces.append(bytes(target[:size]))
    assert b"".join(pieces) == CONTENT
    assert is_compressed(url) == bool(ending)


@pytest.mark.parametrize("ending", COMPRESS)
def test_only_a_plain_file_is_read_from_a_place_on(tmp_path: Path, ending: str) -> None:
    path = written(tmp_path, ending, COMPRESS[ending](CONTENT))
    if not ending:
        with open_stream(path, 1000) as stream:
            assert stream.read() == CONTENT[1000:]
        with open_stream(path, len(CONTENT) + 5) as stream:
            assert stream.read() == b""
        return
    with pytest.raises(ValueError, match=r"cannot be read from byte 1000 on\. Remedy"):
        open_stream(path, 1000)


@pytest.mark.parametrize("ending", [ending for ending in COMPRESS if ending])
def test_a_compressed_file_cut_off_is_damage_and_no_end(tmp_path: Path, ending: str) -> None:
    """zstandard's own reader would take it for the end."""
    data = COMPRESS[ending](CONTENT)
    for size in (1, 5, len(data) // 2, len(data) - 1):
        path = written(tmp_path, ending, data[:size])
        with open_stream(path) as stream, pytest.raises(damage_errors()):
            stream.read()
    path = written(tmp_path, ending, b"")
    with open_stream(path) as stream:
        try:
            assert stream.read() == b""
        except damage_errors():
            pass


@pytest.mark.parametrize("ending", [ending for ending in COMPRESS if ending])
def test_damaged_compressed_bytes_are_damage(tmp_path: Path, ending: str) -> None:
    data = bytearray(COMPRESS[ending](CONTENT))
    data[20:40] = b"\xaa" * 20
    for content in (bytes(data), b"garbage" * 100):
        with (
            open_stream(written(tmp_path, ending, content)) as stream,
            pytest.raises(damage_errors()),
        ):
            stream.read()


@pytest.mark.fuzz
@pytest.mark.parametrize("ending", COMPRESS)
def test_a_closed_stream_leaves_no_descriptor(tmp_path: Path, ending: str) -> None:
    path = written(tmp_path, ending, COMPRESS[ending](CONTENT))
    gc.collect()
    before = open_descriptors()
    stream = open_stream(path)
    stream.read(10)
    assert open_descriptors() == before + 1
    stream.close()
    assert open_descriptors() == before
    with open_stream(path) as other:
        other.read()
    assert open_descriptors() == before


def test_what_cannot_be_opened_leaves_none_either(tmp_path: Path) -> None:
    before = open_descriptors()
    with pytest.raises(FileNotFoundError, match="absent"):
        open_stream(str(tmp_path / "absent.gz"))
    with pytest.raises(IsADirectoryError):
        open_stream(str(tmp_path))
    assert open_descriptors() == before


def test_zstandard_is_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, ".zst", b"")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingDependency, match=r"a.zst.*loader\[tar\]"):
        open_stream(path)
    assert EOFError in damage_errors()
    with open_stream(written(tmp_path, ".gz", gzip.compress(b"abc"))) as stream:
        assert stream.read() == b"abc"
