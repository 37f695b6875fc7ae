"""What comes before the content of a tar member: a header block, and extensions of it.

The header block has the name, size and kind under a checksum, as POSIX.1-1988 (ustar), GNU tar and
Unix V7 write it: see tar(5) of libarchive. Before it there may be extensions: GNU tar writes a long
name as a member of the kind ``L``; POSIX.1-2001 (pax) writes records of any kind before one member
(``x``) or before all that follow (``g``).
"""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple

BLOCK = 512
"""Bytes: headers and contents begin at multiples of it."""

_ZEROS = bytes(BLOCK)
_CHECKSUM = slice(148, 156)
_OCTAL = re.compile(rb"[0-7]+")
_BASE_256 = 0x80

LONG_NAME, LONG_LINK, PAX, PAX_OF_SOLARIS, PAX_GLOBAL = b"L", b"K", b"x", b"X", b"g"

EXTENSIONS = frozenset((LONG_NAME, LONG_LINK, PAX, PAX_OF_SOLARIS, PAX_GLOBAL))
"""Kinds of headers that belong to the next member."""

MAX_EXTENSION = 1 << 20
"""Bytes: no name is longer."""

COMPRESSED = (
    (b"\x1f\x8b", "gzip", ".gz"),
    (b"\x28\xb5\x2f\xfd", "zstandard", ".zst"),
    (b"BZh", "bzip2", ".bz2"),
    (b"\xfd7zXZ\0", "xz", ".xz"),
)
"""How compressed files begin, by what, and how their names end."""

_SPARSE = "holds a sparse file, which has no content of its own in one piece"


class Header(NamedTuple):
    """What a header block says."""

    name: bytes
    """With the prefix of ustar; of long names only the beginning."""
    size: int
    """Of the content, in bytes."""
    kind: bytes
    """One byte: ``b"0"`` a regular file, ``b"5"`` a folder, ``b"x"`` an extended header, ..."""


def parse_header(block: bytes) -> Header | None:
    """What a block of 512 bytes says; None for the block of zeros that ends an archive.

    Raises:
        ValueError: it is no header: its checksum differs, or its size is no number.

    >>> import tarfile
    >>> member = tarfile.TarInfo("a/0001.jpg")
    >>> member.size = 1000
    >>> parse_header(member.tobuf())
    Header(name=b'a/0001.jpg', size=1000, kind=b'0')
    """
    if block == _ZEROS:
        return None
    if not _checksum_fits(block):
        raise ValueError("no tar header: its checksum differs")
    size = parse_number(block[124:136])
    kind = block[156:157]
    name = block[:100].partition(b"\0")[0]
    if kind == b"\0":
        kind = b"5" if name.endswith(b"/") else b"0"
    # GNU tar, whose magic has a blank there, keeps times where ustar has the prefix.
    if block[345] and block[257:263] == b"ustar\0":
        name = block[345:500].partition(b"\0")[0] + b"/" + name
    return Header(name, size, kind)


def parse_number(field: bytes) -> int:
    """A numeric field: octal digits, or base 256 after a byte 0x80 (8 GiB and more).

    Raises:
        ValueError: it is neither, or negative.

    >>> parse_number(b"00000001750\\0"), parse_number(b"\\x80" + (2**40).to_bytes(11, "big"))
    (1000, 1099511627776)
    """
    if field[0] == _BASE_256:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip() or b"0"
    if not _OCTAL.fullmatch(digits):
        raise ValueError(f"no tar header: {field!r} is no size")
    return int(digits, 8)


def padded(size: int) -> int:
    """The size of a content of ``size`` bytes with its padding to whole blocks.

    >>> padded(0), padded(1), padded(512)
    (0, 512, 512)
    """
    return -(-size // BLOCK) * BLOCK


class Extension:
    """What extensions say about the member after them; the first of two wins, as in tarfile.

    >>> extension = Extension()
    >>> extension.add(b"x", b"18 path=long/name\\n")
    >>> extension.name, extension.size
    (b'long/name', None)
    """

    def __init__(self) -> None:
        self.name: bytes | None = None
        self.size: int | None = None

    def add(self, kind: bytes, content: bytes) -> None:
        """Take in one extension: its kind, and its content without padding.

        Raises:
            ValueError: it is malformed, or says what cannot be read: a sparse file, or a name or
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
    """The records ``"<length> <key>=<value>\\n"`` of a pax header.

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
    # Adler-32's low half is 1 + the sum of the bytes, exact for 256 of them: ten times faster
    # than adding them up here. The checksum's own bytes count as blanks.
    low, high = zlib.adler32(block[:256]) & 0xFFFF, zlib.adler32(block[256:]) & 0xFFFF
    blanks = 8 * 0x20 - sum(block[_CHECKSUM])
    total = low + high - 2 + blanks
    if total == stated:
        return True
    # Some old writers added signed bytes.
    own = block[_CHECKSUM]
    negative = sum(byte > 0x7F for byte in block) - sum(byte > 0x7F for byte in own)
    return total - 256 * negative == stated
