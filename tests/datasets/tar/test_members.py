"""Headers of every kind, compared with Python's tarfile."""

from __future__ import annotations

import contextlib
import io
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateful_gpu_loader.datasets.storage.open_files import OpenFiles
from stateful_gpu_loader.datasets.tar.members import (
    Members,
    RangeReader,
    StreamReader,
    parse_header,
    parse_number,
)
from tests.datasets.storage.reads import recorded_reads
from tests.datasets.tar.tar_files import FORMATS, tar_bytes

NAMES = (
    "a.jpg",
    "folder/b.cls",
    "x" * 100,
    "long/" * 30 + "c.jpg",
    "folder/" * 12 + "d" * 95 + ".jpg",
    "Äpfel/日本.txt",
)
LONG = NAMES[3]


def ours(data: bytes) -> list[tuple[str, bytes]]:
    reader = StreamReader(io.BytesIO(data))
    found = []
    for member in Members(reader, "a.tar"):
        content = reader.read_array(member.size)
        assert content is not None
        assert content.tobytes() == data[member.offset : member.offset + member.size]
        found.append((member.name, content.tobytes()))
    return found


def theirs(data: bytes) -> list[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [(each.name, tar.extractfile(each).read()) for each in tar if each.isreg()]  # type: ignore[union-attr]


def patched(data: bytes, changes: dict[int, bytes], at: int = 0) -> bytes:
    """Return the archive with changed bytes in the header at ``at``, and a new checksum."""
    block = bytearray(data[at : at + 512])
    for offset, content in changes.items():
        block[offset : offset + len(content)] = content
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return data[:at] + bytes(block) + data[at + 512 :]


def test_headers_that_lie_together_are_read_without_the_contents_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, size = tmp_path / "a.tar", 100_000
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(20):
            member = tarfile.TarInfo(f"{number}.jpg")
            member.size, member.mtime = size, 1.5  # which needs a separate header
            tar.addfile(member, io.BytesIO(bytes(size)))
    reads = recorded_reads(monkeypatch)
    reader = RangeReader(OpenFiles(), str(path), path.stat().st_size)
    assert len(list(Members(reader, str(path)))) == 20
    assert sum(size for _, size in reads) < 20 * 4 * 4096


@pytest.mark.parametrize("tar_format", FORMATS)
def test_members_are_those_of_tarfile(tar_format: str) -> None:
    names = [name for name in NAMES if tar_format != "ustar" or len(name.encode()) < 250]
    for size in (0, 1, 511, 512, 513, 20_000):
        entries = [(name, bytes([i]) * (size + i)) for i, name in enumerate(names)]
        data = tar_bytes(entries, FORMATS[tar_format])
        assert ours(data) == theirs(data) == entries


def test_old_archives_have_no_magic() -> None:
    """Unix V7: the kind is a zero byte, and a folder's name ends with a slash."""
    data = patched(tar_bytes([("a.jpg", b"abc")]), {156: b"\0", 257: bytes(255)})
    folder = patched(tar_bytes([("folder", b"")]), {6: b"/", 156: b"\0", 257: bytes(255)})
    both = folder[:512] + data
    assert ours(both) == theirs(both) == [("a.jpg", b"abc")]


def test_gnu_tar_keeps_times_where_ustar_has_a_prefix() -> None:
    """Only the magic identifies its incremental archives; tarfile does not look at it."""
    data = tar_bytes([("a.jpg", b"abc")])
    assert ours(patched(data, {345: b"14712345671\0"})) == [("a.jpg", b"abc")]
    ustar = tar_bytes([("a.jpg", b"abc")], tarfile.USTAR_FORMAT)
    prefixed = patched(ustar, {345: b"a/prefix"})
    assert ours(prefixed) == theirs(prefixed) == [("a/prefix/a.jpg", b"abc")]


def test_links_and_folders_are_left_out() -> None:
    """A hard link with a size has no content, like tarfile: the size is that of the linked file."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for kind in b"512346":
            member = tarfile.TarInfo(f"odd-{kind}")
            member.type, member.linkname = bytes([kind]), "a.jpg" * 40
            tar.addfile(member)
        for kind in (tarfile.CONTTYPE, b"D", b"M", tarfile.REGTYPE):
            member = tarfile.TarInfo(f"file-{kind.decode()}.jpg")
            member.type, member.size = kind, 700
            tar.addfile(member, io.BytesIO(kind * 700))
    data = file.getvalue()
    assert ours(data) == theirs(data)
    assert [name for name, _ in ours(data)] == ["file-7.jpg", "file-0.jpg"]
    link = patched(tar_bytes([("link.jpg", b"")]), {156: b"1", 124: b"00000001000\0"})
    data = link[:512] + tar_bytes([("a.jpg", b"abc")])
    assert ours(data) == theirs(data) == [("a.jpg", b"abc")]


def test_sizes_beyond_eight_gibibytes_are_read() -> None:
    assert parse_number(b"\x80" + (2**70).to_bytes(11, "big")) == 2**70
    member = tarfile.TarInfo("a.jpg")
    member.size = 2**40 + 7
    for tar_format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        reader = StreamReader(io.BytesIO(member.tobuf(tar_format)))
        found = next(iter(Members(reader, "a.tar")))
        assert (found.size, found.name) == (2**40 + 7, "a.jpg")


def test_pax_sizes_and_names_win_over_the_header() -> None:
    entries = [("a.jpg", b"abc" * 300), ("b.cls", b"7")]
    for kind in (b"x", b"X"):
        record = b"12 size=900\n16 path=c/d.jpg\n"
        head = patched(tar_bytes([("pax", record)]), {156: kind})[:1024]
        data = head + patched(tar_bytes(entries), {124: b"00000000005\0"})
        expected = [("c/d.jpg", b"abc" * 300), ("b.cls", b"7")]
        assert ours(data) == theirs(data) == expected


def test_global_comments_are_skipped() -> None:
    """``git archive`` writes one."""
    file = io.BytesIO()
    headers = {"comment": "a commit"}
    with tarfile.open(
        fileobj=file, mode="w", format=tarfile.PAX_FORMAT, pax_headers=headers
    ) as tar:
        tar.addfile(tarfile.TarInfo("a.jpg"))
    assert ours(file.getvalue()) == theirs(file.getvalue()) == [("a.jpg", b"")]


def extended(kind: bytes, content: bytes) -> bytes:
    blocks = tar_bytes([("extension", content)])[: 512 + -(-len(content) // 512) * 512]
    return patched(blocks, {156: kind}) + tar_bytes([("a.jpg", b"abc")])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: patched(tar_bytes([("a.jpg", b"")]), {156: b"S"}), "sparse file.*without --sp"),
        (lambda: extended(b"x", b"22 GNU.sparse.major=1\n"), "byte 0: .*sparse file"),
        (lambda: extended(b"g", b"15 path=b.jpg\n\n"), "global pax header|malformed"),
        (lambda: extended(b"g", b"14 path=b.jpg\n"), "global pax header"),
        (lambda: extended(b"x", b"12 size=-900\n"), "malformed record at byte 0"),
        (lambda: extended(b"x", b"13 size=-900\n"), "has the size b'-900'"),
        (lambda: extended(b"x", b"99 path=b.jpg\n"), "malformed record at byte 0"),
        (lambda: extended(b"x", b"0 path=b.jpg\n"), "malformed record at byte 0"),
        (lambda: extended(b"x", b"no record"), "malformed record at byte 0"),
        (lambda: extended(b"L", b"b")[:1024], None),
        (lambda: extended(b"L", b"b")[:1024] + bytes(1024), "announces a member"),
        (lambda: extended(b"L", b"b" * 600)[:1024], "byte 0: .*claims 600 bytes.*ends earlier"),
        (lambda: patched(tar_bytes([("a", b"")]), {156: b"L", 124: b"7" * 11}), "claims 8589934"),
        (lambda: patched(tar_bytes([("a", b"")]), {124: b"\xff" * 12}), "is not a size"),
        (lambda: patched(tar_bytes([("a", b"")]), {124: b"9"}), "is not a size"),
        (lambda: b"", "byte 0: the file is empty"),
        (lambda: b"no tar", "ends in the middle of a header"),
        (lambda: b"no tar" * 100, "byte 0: not a tar header: its checksum differs"),
        (lambda: tar_bytes([("a.jpg", b"abc")])[:515], "in the middle of the member b'a.jpg' of 3"),
        (lambda: tar_bytes([("a.jpg", b"abc")])[:1023], "in the middle of the member"),
    ],
)
def test_what_cannot_be_read_is_named(make: Callable[[], bytes], text: str | None) -> None:
    """Unlike tarfile, which silently ends at a damaged header."""
    data = make()
    with pytest.raises(ValueError, match=text or "announces a member") as caught:
        list(Members(StreamReader(io.BytesIO(data)), "a.tar"))
    assert str(caught.value).startswith("'a.tar', byte ")
    assert "Remedy: " in str(caught.value)


def test_the_end_is_a_block_of_zeros_or_the_end_of_the_file() -> None:
    """Archives joined by ``cat`` end where the first one ends, as in tarfile."""
    one = tar_bytes([("a.jpg", b"abc")])
    members = Members(StreamReader(io.BytesIO(one + one)), "a.tar")
    assert [member.name for member in members] == ["a.jpg"]
    assert members.end == 1024
    assert ours(one + one) == theirs(one + one)
    assert ours(one[:1024]) == theirs(one[:1024]) == [("a.jpg", b"abc")]
    assert ours(one[:1536] + b"garbage" * 100) == [("a.jpg", b"abc")]
    assert ours(bytes(512)) == []


def test_a_file_cut_off_at_any_byte_gives_a_prefix_or_an_error() -> None:
    whole = tar_bytes([("a.jpg", b"abc" * 300), (LONG, b"7"), ("b.jpg", b"")], tarfile.PAX_FORMAT)
    expected = ours(whole)
    for size in range(len(whole)):
        reader = StreamReader(io.BytesIO(whole[:size]))
        found = []
        with contextlib.suppress(ValueError):
            for member in Members(reader, "a.tar"):
                content = reader.read_array(member.size)
                if content is None:
                    break
                found.append((member.name, content.tobytes()))
        assert found == expected[: len(found)], size


def test_signed_checksums_of_old_writers_are_taken() -> None:
    data = bytearray(tar_bytes([("\udcff.jpg", b"abc")]))
    data[148:156] = b" " * 8
    signed = sum(struct.unpack("512b", data[:512]))
    data[148:156] = b"%06o\0 " % signed
    assert ours(bytes(data)) == theirs(bytes(data)) == [("\udcff.jpg", b"abc")]
    data[148:156] = b"%06o\0 " % (signed + 1)
    with pytest.raises(ValueError, match="checksum differs"):
        ours(bytes(data))


@given(st.integers(0, 511), st.integers(1, 255))
def test_a_changed_byte_of_a_header_is_noticed(place: int, change: int) -> None:
    block = bytearray(tar_bytes([("photos/a.jpg", b"abc")])[:512])
    block[place] ^= change
    try:
        header = parse_header(bytes(block))
    except ValueError:
        return
    # Blanks and zeros around the checksum's digits are ignored.
    assert 148 <= place < 156
    assert header is not None
    assert (header.name, header.size) == (b"photos/a.jpg", 3)


@given(st.lists(st.tuples(st.text(min_size=1, max_size=300), st.binary(max_size=1500)), max_size=4))
def test_any_names_and_contents_are_read_back(entries: list[tuple[str, bytes]]) -> None:
    try:
        data = tar_bytes(entries, tarfile.PAX_FORMAT)
    except UnicodeEncodeError:
        return
    assert ours(data) == theirs(data)
