"""The header block of a tar member: its name, size and kind, under a checksum.

As POSIX.1-1988 (ustar), GNU tar and Unix V7 write it: see tar(5) of libarchive.
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
    """Bytes that a content of so many bytes takes, filled up to whole blocks.

    >>> padded(0), padded(1), padded(512)
    (0, 512, 512)
    """
    return -(-size // BLOCK) * BLOCK


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
