"""Files read from start to end, decompressed, and their damage."""

from __future__ import annotations

import gc
import gzip
import itertools
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
@pytest.mark.parametrize(
    ("ending", "protocol"),
    list(zip(COMPRESS, itertools.cycle(["", "file://", "memory://"]), strict=False)),
)
def test_the_content_comes_whole_and_in_pieces(tmp_path: Path, ending: str, protocol: str) -> None:
    """Several compressed parts in a row are one content, as ``cat`` joins them.

    A closed stream leaves no descriptor.
    """
    half = len(CONTENT) // 2
    data = COMPRESS[ending](CONTENT[:half]) + COMPRESS[ending](CONTENT[half:])
    url = f"{protocol}{written(tmp_path, ending, data)}"
    if protocol == "memory://":
        fsspec.filesystem("memory").pipe(url, data)
    gc.collect()
    before = open_descriptors()
    with open_stream(url) as stream:
        assert stream.read() == CONTENT
    assert open_descriptors() == before
    with open_stream(url) as stream:
        pieces, target = [stream.read(7)], bytearray(100_000)
        assert open_descriptors() == before + (protocol != "memory://")
        while (size := stream.readinto(target)) > 0:  # type: ignore[attr-defined]
            pieces.append(bytes(target[:size]))
    assert open_descriptors() == before
    assert b"".join(pieces) == CONTENT
    assert is_compressed(url) == bool(ending)


def test_only_a_plain_file_is_read_from_a_place_on(tmp_path: Path) -> None:
    path = written(tmp_path, "", CONTENT)
    for place in (1000, len(CONTENT) + 5):
        with open_stream(path, place) as stream:
            assert stream.read() == CONTENT[place:]
    for ending in COMPRESS:
        with pytest.raises(ValueError, match=r"cannot be read from byte 1000 on\. Remedy"):
            open_stream(f"{path}{ending or '.gz'}", 1000)


@pytest.mark.parametrize("ending", [ending for ending in COMPRESS if ending])
def test_compressed_bytes_cut_off_or_changed_are_damage(tmp_path: Path, ending: str) -> None:
    """zstandard's own reader would take a cut for the end."""
    data = COMPRESS[ending](CONTENT)
    changed = data[:20] + b"\xaa" * 20 + data[40:]
    cut = [data[:size] for size in (1, 5, len(data) // 2, len(data) - 1)]
    for content in (*cut, changed, b"garbage" * 100):
        path = written(tmp_path, ending, content)
        with open_stream(path) as stream, pytest.raises(damage_errors()):
            stream.read()
    with open_stream(written(tmp_path, ending, b"")) as stream:
        try:
            assert stream.read() == b""
        except damage_errors():
            pass


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
