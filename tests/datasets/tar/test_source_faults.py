"""Damaged, truncated, replaced, compressed and missing tars."""

from __future__ import annotations

import bz2
import contextlib
import errno
import gzip
import io
import lzma
import os
import pickle
import re
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateful_gpu_loader.datasets.tar.shards import TarShards
from stateful_gpu_loader.datasets.tar.source import TarSource
from tests.datasets.compression import COMPRESS
from tests.datasets.source_conformance import items
from tests.datasets.tar.tar_files import sample_entries, tar_bytes, write_tar

ENTRIES = sample_entries(0, 3)
WHOLE = tar_bytes(ENTRIES)


@pytest.fixture
def tar(tmp_path: Path) -> Path:
    return write_tar(tmp_path / "a.tar", ENTRIES)


def test_a_tar_that_is_not_there_is_named(tmp_path: Path, tar: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.tar"):
        TarSource([tar, tmp_path / "absent.tar"])
    with pytest.raises(FileNotFoundError, match="no file matches"):
        TarSource(tmp_path / "absent-*.tar")
    with pytest.raises(OSError, match=r"absent.tar"):
        TarSource("memory://absent.tar")


def test_a_folder_in_place_of_a_tar_names_path_and_index(tar: Path) -> None:
    """An OSError stays an OSError, because it may be temporary."""
    # A copy, as a worker has it: open files can still be read.
    source = pickle.loads(pickle.dumps(TarSource(tar)))
    tar.unlink()
    tar.mkdir()
    with pytest.raises(IsADirectoryError, match=r"index = 1: .*a.tar"):
        source[1]


def test_a_tar_replaced_on_disk_is_noticed(tar: Path) -> None:
    """No sample comes from a wrong offset. The file is at fault, so no sample is left out."""
    source = TarSource(tar)
    tar.write_bytes(tar_bytes([("x.txt", b"in front"), *ENTRIES]))
    with pytest.raises(OSError, match=r"index = 1") as e:
        source[1]
    assert e.value.errno == errno.ESTALE
    assert e.value.filename == str(tar)
    again = TarSource(tar, missing="skip")
    assert items(again) == items(TarSource(write_tar(tar.parent / "b.tar", ENTRIES)))


def test_a_tar_cut_off_after_indexing_is_a_named_error(tar: Path) -> None:
    source = TarSource(tar)
    os.truncate(tar, 512 * 9 + 3)
    assert source[0][1] == 0
    with pytest.raises(ValueError, match=r"index = 2.*'0002'.*byte 4611"):
        source[2]


@pytest.mark.fuzz
def test_a_tar_cut_off_at_any_byte_is_an_error_or_a_prefix(tmp_path: Path) -> None:
    """At the edges of each block, and at every eleventh byte."""
    path = write_tar(tmp_path / "cut.tar", sample_entries(0, 2))
    expected = items(TarSource(path))
    prefixes = set()
    for size in reversed(range(5120)):
        if size % 11 and (size + 2) % 512 > 4:
            continue
        os.truncate(path, size)
        found, error = contents_or_error(path)
        assert found == expected[: len(found)]
        assert error is None or all(word in error for word in ("cut.tar", "Remedy"))
        prefixes.add(len(found))
    assert prefixes == {0, 1, 2}


def contents_or_error(path: Path) -> tuple[list[tuple[bytes, Any]], str | None]:
    try:
        return items(TarSource(path)), None
    except ValueError as error:
        return [], str(error)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "byte 0: the file is empty"),
        (b"not a tar at all" * 99, "byte 0: not a tar header"),
        (WHOLE[:1024] + b"x" + WHOLE[1025:], "byte 1024: not a tar header: its checksum"),
        (WHOLE[:5700], "byte 5120: the file ends in the middle of the member"),
        (tar_bytes([("a.jpg", b""), ("a.JPG", b"")]), "byte 512: the sample 'a' has two"),
    ],
)
def test_a_damaged_tar_is_named_with_the_byte(tar: Path, content: bytes, text: str) -> None:
    """No loader exists yet whose on_bad_sample= could leave out a record."""
    tar.write_bytes(content)
    with pytest.raises(ValueError, match=f"a.tar', {text}.*Remedy: ") as caught:
        TarSource(tar)
    assert "on_bad_sample" not in str(caught.value)


def test_a_malformed_target_is_a_bad_sample(tar: Path) -> None:
    """Only this sample is bad; the error names key, tar, byte and index."""
    entries = [(name, b"seven" if name == "0001.cls" else data) for name, data in ENTRIES]
    source = TarSource(write_tar(tar, entries))
    assert source[0][1] == 0
    text = r"a.tar', record '0001', byte 3584: its member 'cls' cannot be read, sample index = 1: "
    with pytest.raises(ValueError, match=text):
        source[1]
    with pytest.raises(ValueError, match=text):
        source.record(1)


def test_compressed_tars_are_refused_with_the_remedy(tmp_path: Path) -> None:
    for ending in COMPRESS:
        path = tmp_path / f"a.tar{ending}"
        path.write_bytes(gzip.compress(WHOLE))
        with pytest.raises(ValueError, match=r"compressed.*TarShards"):
            TarSource(path)


@settings(max_examples=50)
@given(st.integers(0, 1 << 20), st.integers(1, 255))
def test_bytes_that_change_after_indexing_never_give_another_sample(place: int, by: int) -> None:
    """Headers are checked at every read; a tar has no checksums of contents."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.tar")
        path.write_bytes(WHOLE)
        source = TarSource(path)
        expected = items(source)
        data = bytearray(WHOLE)
        data[place % len(data)] ^= by
        path.write_bytes(data)
        for index, (image, _) in enumerate(expected):
            with contextlib.suppress(ValueError, OSError):
                found = source.read(index).data.tolist()
                assert sum(a != b for a, b in zip(found, image, strict=True)) <= 1


@pytest.mark.parametrize(
    ("compress", "packer"),
    [(gzip.compress, "gzip"), (bz2.compress, "bzip2"), (lzma.compress, "xz")],
)
def test_a_compressed_tar_with_the_name_of_a_plain_one_is_named(
    tar: Path, compress: Callable[[bytes], bytes], packer: str
) -> None:
    for size in (None, 100):
        tar.write_bytes(compress(WHOLE)[:size])
        for read in (TarSource, lambda path: list(TarShards(path))):
            with pytest.raises(ValueError, match=rf"compressed.*{packer}"):
                read(tar)


def test_a_member_whose_name_begins_as_a_compressed_file_is_read(tar: Path) -> None:
    write_tar(tar, [("BZh.jpg", b"image"), ("BZh.cls", b"3")])
    assert items(TarSource(tar)) == [(b"image", 3)]


@pytest.mark.parametrize(
    ("kind", "what"), [(tarfile.LNKTYPE, "a hard link"), (tarfile.SYMTYPE, "a symbolic link")]
)
def test_a_link_in_place_of_a_member_is_named(
    tar: Path, kind: bytes, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """GNU tar stores the second name of a file as a link. webdataset omits links, too."""
    with tarfile.open(tar, "w") as archive:
        for name, content in (("a.jpg", b"image"), ("a.cls", b"1"), ("b.cls", b"2")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("b.jpg")
        link.type, link.linkname = kind, "a.jpg"
        archive.addfile(link)
    text = rf"'b\.jpg' is {what} to 'a\.jpg' and has no content: .*--hard-dereference"
    for _ in range(2):  # the second time with the kept index
        with pytest.raises(ValueError, match=text):
            TarSource(tar)
        found = [each for each, _ in TarShards(tar).read_shard("a.tar", 0)]
        assert isinstance(found[1], ValueError)
        assert re.search(text, str(found[1]))
    assert not caplog.records
    assert len(TarSource(tar, missing="skip")) == 1
    assert (
        "1 links in tars are left out, because they have no content: the first, 'b.jpg' in"
        in caplog.text
    )
