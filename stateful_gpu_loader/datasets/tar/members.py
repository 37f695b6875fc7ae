"""The headers of a tar archive, and its regular members in order, from any position.

A member is a header block and its content, padded to whole blocks. The archive ends at a block of
zeros, or at the end of the file between two members, as Python's ``tarfile`` reads it.

The header block holds the name, size and kind, with a checksum. POSIX.1-1988 (ustar), GNU tar and
Unix V7 write it; see tar(5) of libarchive. Extensions may precede it. GNU tar writes a long name as
a member of kind ``L``. POSIX.1-2001 (pax) writes records before one member (``x``) or before all
that follow (``g``).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from functools import partial
from typing import IO, NamedTuple, Protocol

from stateful_gpu_loader.datasets.storage.failures import REMEDY, damaged
from stateful_gpu_loader.datasets.storage.memory import Bytes
from stateful_gpu_loader.datasets.storage.open_files import OpenFiles
from stateful_gpu_loader.datasets.storage.paths import is_url
from stateful_gpu_loader.datasets.storage.streams import Lookahead, read_up_to

_REGULAR = frozenset((b"0", b"7"))
_WITHOUT_CONTENT = frozenset((b"1", b"2", b"3", b"4", b"5", b"6"))
_LINKS = {b"1": "a hard link", b"2": "a symbolic link"}
_LINKED = slice(157, 257)
_KIND_SPARSE = b"S"
_UNPACK = "pack the files again, without --sparse, as tarfile, GNU tar and webdataset do by default"

_LOCAL_WINDOW = 4 << 10
_REMOTE_WINDOW = 8 << 20


class Member(NamedTuple):
    """One regular file in an archive."""

    name: str
    """Path in the archive; bytes that are not UTF-8 are escaped, as by ``os.fsdecode``."""
    start: int
    """Offset of its first header block, extensions included."""
    offset: int
    """Offset of its content; the 512 bytes before it are its header."""
    size: int
    """Size of its content in bytes."""
    mark: int
    """CRC-32 of its header, which reveals a replaced file."""


class Link(NamedTuple):
    """A link in an archive; it has no content."""

    name: str
    """Path in the archive."""
    what: str
    """Kind and target of the link: ``"a hard link to 'a.jpg'"``."""


class Reader(Protocol):
    """Reads the archive's bytes in order."""

    @property
    def position(self) -> int:
        """Offset of the next byte."""

    def read(self, size: int) -> bytes:
        """Return the next bytes; fewer at the end of the file."""

    def advance(self, position: int) -> bool:
        """Skip to a later byte; return False if the file ends before it."""


class RangeReader:
    """Reads windows of a file of known size, and skips the bytes between them.

    A window is 4 KiB of a local file, to skip the contents of images. It is 8 MiB of a remote file,
    where a request takes as long as that transfer.
    """

    def __init__(self, files: OpenFiles, path: str, size: int) -> None:
        window = _REMOTE_WINDOW if is_url(path) else _LOCAL_WINDOW
        self._pieces = Lookahead(partial(files.read, path), size, window=window, largest=window)
        self._size = size
        self.position = 0

    def read(self, size: int) -> bytes:
        size = min(size, self._size - self.position)
        self.position += size
        return self._pieces.at(self.position - size, size)

    def advance(self, position: int) -> bool:
        self.position = min(position, self._size)
        return position <= self._size


class StreamReader:
    """Reads a stream from its current position; skipped bytes are read and dropped.

    Args:
        stream: buffered stream; it is not closed.
        position: offset of its next byte in the archive.
    """

    def __init__(self, stream: IO[bytes], position: int = 0) -> None:
        self._stream = stream
        self.position = position

    def read(self, size: int) -> bytes:
        content = self._stream.read(size)
        self.position += len(content)
        return content

    def advance(self, position: int) -> bool:
        while self.position < position and self.read(min(position - self.position, 1 << 20)):
            pass
        return self.position >= position

    def read_array(self, size: int) -> Bytes | None:
        """Return newly allocated uint8 [size]; None if the file ends too early."""
        content = read_up_to(self._stream, size)
        self.position += len(content)
        return content if len(content) == size else None


class Members:
    """Iterates over the regular members; links, folders and devices are left out.

    The caller may read the content of the current member; unread content is skipped.

    Args:
        reader: reader at the first byte of a header, or at the archive's end.
        remedy: what the user can do if the archive is damaged.

    Attributes:
        links: links found so far.
        end: offset where the archive ends, once the iteration has ended.
        is_closed: whether a block of zeros is there; without it the file may have been truncated.

    Raises:
        ValueError: the archive is damaged or truncated, is not a tar, or has a sparse member. All
            earlier members have been yielded.

    >>> import io, tarfile
    >>> archive = io.BytesIO()
    >>> with tarfile.open(fileobj=archive, mode="w") as tar:
    ...     member = tarfile.TarInfo("0001.cls")
    ...     member.size = 1
    ...     tar.addfile(member, io.BytesIO(b"7"))
    >>> _ = archive.seek(0)
    >>> [(each.name, each.offset, each.size) for each in Members(StreamReader(archive), "a.tar")]
    [('0001.cls', 512, 1)]
    """

    def __init__(self, reader: Reader, path: str, remedy: str = REMEDY) -> None:
        self._reader = reader
        self._path = path
        self._remedy = remedy
        self.links: list[Link] = []
        self.end = -1
        self.is_closed = False

    def __iter__(self) -> Iterator[Member]:
        reader = self._reader
        while True:
            start = reader.position
            extension = Extension()
            while True:
                at = reader.position
                block = reader.read(BLOCK)
                header = self._header(block, at, is_first=at == start)
                if header is None:
                    self.end, self.is_closed = at, len(block) == BLOCK
                    return
                if header.kind not in EXTENSIONS:
                    break
                self._extend(extension, header, at)
            offset = at + BLOCK
            size = header.size if extension.size is None else extension.size
            content = 0 if header.kind in _WITHOUT_CONTENT else padded(size)
            name = header.name if extension.name is None else extension.name
            if header.kind in _REGULAR:
                text = name.decode("utf-8", "surrogateescape")
                yield Member(text, start, offset, size, zlib.crc32(block))
            elif header.kind in _LINKS:
                target = block[_LINKED].partition(b"\0")[0].decode("utf-8", "surrogateescape")
                what = f"{_LINKS[header.kind]} to {target!r}"
                self.links.append(Link(name.decode("utf-8", "surrogateescape"), what))
            elif header.kind == _KIND_SPARSE:
                what = f"the member {name!r} is a sparse file"
                raise damaged(self._path, what, offset=start, remedy=_UNPACK)
            if not reader.advance(offset + content):
                what = f"the file ends in the middle of the member {name!r} of {size} bytes"
                raise self._damaged(what, start)

    def _header(self, block: bytes, at: int, is_first: bool) -> Header | None:
        header = None
        if len(block) == BLOCK:
            try:
                header = parse_header(block)
            except ValueError as error:
                raise self._no_header(block, at, str(error)) from None
        elif block or at == 0:
            what = "the file ends in the middle of a header" if block else "the file is empty"
            raise self._no_header(block, at, what)
        if header is None and not is_first:
            what = "the archive ends where a long name or a pax header announces a member"
            raise self._damaged(what, at)
        return header

    def _no_header(self, block: bytes, at: int, what: str) -> ValueError:
        for signature, packer, ending in COMPRESSED if at == 0 else ():
            if block.startswith(signature):
                what = f"it is compressed by {packer}, and its name does not end with {ending!r}"
                remedy = "decompress it, or rename it and stream it with TarShards"
                return damaged(self._path, what, offset=at, remedy=remedy)
        return self._damaged(what, at)

    def _damaged(self, what: str, offset: int) -> ValueError:
        return damaged(self._path, what, offset=offset, remedy=self._remedy)

    def _extend(self, extension: Extension, header: Header, at: int) -> None:
        what = f"an extended header claims {header.size} bytes"
        if header.size > MAX_EXTENSION:
            raise self._damaged(what, at)
        content = self._reader.read(padded(header.size))
        if len(content) < padded(header.size):
            raise self._damaged(f"{what}, and the file ends earlier", at)
        try:
            extension.add(header.kind, content[: header.size])
        except ValueError as error:
            raise self._damaged(str(error), at) from None


BLOCK = 512
"""Block size in bytes; headers and contents begin at multiples of it."""

_ZEROS = bytes(BLOCK)
_CHECKSUM = slice(148, 156)
_OCTAL = re.compile(rb"[0-7]+")
_BASE_256 = 0x80

LONG_NAME, LONG_LINK, PAX, PAX_OF_SOLARIS, PAX_GLOBAL = b"L", b"K", b"x", b"X", b"g"

EXTENSIONS = frozenset((LONG_NAME, LONG_LINK, PAX, PAX_OF_SOLARIS, PAX_GLOBAL))
"""Kinds of headers that describe the next member."""

MAX_EXTENSION = 1 << 20
"""Largest size of an extension in bytes."""

COMPRESSED = (
    (b"\x1f\x8b", "gzip", ".gz"),
    (b"\x28\xb5\x2f\xfd", "zstandard", ".zst"),
    (b"BZh", "bzip2", ".bz2"),
    (b"\xfd7zXZ\0", "xz", ".xz"),
)
"""First bytes, compressor and name ending of compressed files."""

_SPARSE = "it is a sparse file, whose content is not stored in one piece"


class Header(NamedTuple):
    """The contents of a header block."""

    name: bytes
    """Name with the prefix of ustar; a long name is cut."""
    size: int
    """Size of the content in bytes."""
    kind: bytes
    """One byte: ``b"0"`` regular file, ``b"5"`` folder, ``b"x"`` extended header, ..."""


def parse_header(block: bytes) -> Header | None:
    """Parse a block of 512 bytes; return None for the block of zeros that ends an archive.

    Raises:
        ValueError: the block is not a header: its checksum differs, or its size is not a number.

    >>> import tarfile
    >>> member = tarfile.TarInfo("a/0001.jpg")
    >>> member.size = 1000
    >>> parse_header(member.tobuf())
    Header(name=b'a/0001.jpg', size=1000, kind=b'0')
    """
    if block == _ZEROS:
        return None
    if not _checksum_fits(block):
        raise ValueError("not a tar header: its checksum differs")
    size = parse_number(block[124:136])
    kind = block[156:157]
    name = block[:100].partition(b"\0")[0]
    if kind == b"\0":
        kind = b"5" if name.endswith(b"/") else b"0"
    # GNU tar, with a blank in its magic, stores times in place of ustar's prefix.
    if block[345] and block[257:263] == b"ustar\0":
        name = block[345:500].partition(b"\0")[0] + b"/" + name
    return Header(name, size, kind)


def parse_number(field: bytes) -> int:
    """Parse a numeric field: octal digits, or base 256 after a byte 0x80 (8 GiB and more).

    Raises:
        ValueError: the field is neither, or negative.

    >>> parse_number(b"00000001750\\0"), parse_number(b"\\x80" + (2**40).to_bytes(11, "big"))
    (1000, 1099511627776)
    """
    if field[0] == _BASE_256:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip() or b"0"
    if not _OCTAL.fullmatch(digits):
        raise ValueError(f"not a tar header: {field!r} is not a size")
    return int(digits, 8)


def padded(size: int) -> int:
    """Return the size of a content of ``size`` bytes, padded to whole blocks.

    >>> padded(0), padded(1), padded(512)
    (0, 512, 512)
    """
    return -(-size // BLOCK) * BLOCK


class Extension:
    """Extensions for the next member; the first of two wins, as in tarfile.

    >>> extension = Extension()
    >>> extension.add(b"x", b"18 path=long/name\\n")
    >>> extension.name, extension.size
    (b'long/name', None)
    """

    def __init__(self) -> None:
        self.name: bytes | None = None
        self.size: int | None = None

    def add(self, kind: bytes, content: bytes) -> None:
        """Add one extension: its kind, and its content without padding.

        Raises:
            ValueError: the extension is malformed or unsupported: a sparse file, or one name or
                size for all members.
        """
        if kind == LONG_NAME:
            self._take(content.partition(b"\0")[0], None)
        elif kind != LONG_LINK:
            records = parse_pax(content)
            if any(key.startswith(b"GNU.sparse.") for key in records):
                raise ValueError(_SPARSE)
            name, size = records.get(b"path"), records.get(b"size")
            if kind == PAX_GLOBAL and (name is not None or size is not None):
                raise ValueError("a global pax header gives one name or size to all members")
            if size is not None and not size.isdigit():
                raise ValueError(f"its pax header has the size {size!r}")
            self._take(
                None if name is None else name.rstrip(b"/"), None if size is None else int(size)
            )

    def _take(self, name: bytes | None, size: int | None) -> None:
        self.name = name if self.name is None else self.name
        self.size = size if self.size is None else self.size


def parse_pax(content: bytes) -> dict[bytes, bytes]:
    """Parse the records ``"<length> <key>=<value>\\n"`` of a pax header.

    Raises:
        ValueError: a record is malformed.

    >>> parse_pax(b"12 path=a/b\\n12 comment=\\n")
    {b'path': b'a/b', b'comment': b''}
    """
    records = {}
    at = 0
    while at < len(content):
        digits = content[at : at + 20].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        record = content[at : at + length]
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if not key or not equals or len(record) < length or not record.endswith(b"\n"):
            raise ValueError(f"its pax header has a malformed record at byte {at}")
        records[key] = value
        at += length
    return records


def _checksum_fits(block: bytes) -> bool:
    try:
        stated = parse_number(block[_CHECKSUM])
    except ValueError:
        return False
    # Adler-32's low half is 1 + the sum of the bytes, exact for 256 bytes, and ten times faster
    # than a sum in Python. The checksum's own bytes count as blanks.
    low, high = zlib.adler32(block[:256]) & 0xFFFF, zlib.adler32(block[256:]) & 0xFFFF
    blanks = 8 * 0x20 - sum(block[_CHECKSUM])
    total = low + high - 2 + blanks
    if total == stated:
        return True
    # Some old programs summed signed bytes.
    own = block[_CHECKSUM]
    negative = sum(byte > 0x7F for byte in block) - sum(byte > 0x7F for byte in own)
    return total - 256 * negative == stated
