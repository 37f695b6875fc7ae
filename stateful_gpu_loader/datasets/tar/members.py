"""The regular members of a tar archive, in their order, from any place on.

A member is a header block and its content, filled up to whole blocks; a block of zeros ends the
archive, as does the end of the file between two members (both as Python's ``tarfile`` reads).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from stateful_gpu_loader.datasets.damage import damaged
from stateful_gpu_loader.datasets.tar.extensions import EXTENSIONS, MAX_EXTENSION, Extension
from stateful_gpu_loader.datasets.tar.header import BLOCK, Header, padded, parse_header

_REGULAR = frozenset((b"0", b"7"))
_WITHOUT_CONTENT = frozenset((b"1", b"2", b"3", b"4", b"5", b"6"))
_SPARSE = b"S"
_UNPACK = "pack the files anew, without --sparse, as tarfile, GNU tar and webdataset do by default"


class Member(NamedTuple):
    """One regular file in an archive."""

    name: str
    """Its path in the archive; bytes that are no UTF-8 are escaped, as ``os.fsdecode`` does."""
    start: int
    """Byte of its first header block, extensions included."""
    offset: int
    """Byte of its content; the 512 bytes before are its header."""
    size: int
    """Bytes of its content."""
    mark: int
    """CRC-32 of its header: tells whether the header is still there."""


class Reader(Protocol):
    """The archive's bytes, in order."""

    @property
    def position(self) -> int:
        """The byte that is read next."""

    def read(self, size: int) -> bytes:
        """The next bytes; fewer at the end of the file."""

    def advance(self, position: int) -> bool:
        """Go on at a later byte; False where the file ends before it."""


class Members:
    """Iterates over the regular members; links, folders and devices are left out.

    Between two members the caller may read the content of the one it got; what it leaves is
    skipped.

    Args:
        reader: at the first byte of a header, or at the archive's end.
        path: of the archive, for errors.

    Attributes:
        end: after the last member: the byte where the archive ends.
        is_closed: whether a block of zeros is there; a file without one may have been cut off
            between two members.

    Raises:
        ValueError: the archive is damaged or cut off, is none at all, or has a sparse member. The
            members before have come.

    >>> import io, tarfile
    >>> from stateful_gpu_loader.datasets.tar.readers import StreamReader
    >>> archive = io.BytesIO()
    >>> with tarfile.open(fileobj=archive, mode="w") as tar:
    ...     member = tarfile.TarInfo("0001.cls")
    ...     member.size = 1
    ...     tar.addfile(member, io.BytesIO(b"7"))
    >>> _ = archive.seek(0)
    >>> [(each.name, each.offset, each.size) for each in Members(StreamReader(archive), "a.tar")]
    [('0001.cls', 512, 1)]
    """

    def __init__(self, reader: Reader, path: str) -> None:
        self._reader = reader
        self._path = path
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
            elif header.kind == _SPARSE:
                what = f"the member {name!r} is a sparse file"
                raise damaged(self._path, what, offset=start, remedy=_UNPACK)
            if not reader.advance(offset + content):
                what = f"the file ends in the middle of the member {name!r} of {size} bytes"
                raise damaged(self._path, what, offset=start)

    def _header(self, block: bytes, at: int, is_first: bool) -> Header | None:
        header = None
        if len(block) == BLOCK:
            try:
                header = parse_header(block)
            except ValueError as error:
                raise damaged(self._path, str(error), offset=at) from None
        elif block or at == 0:
            what = "the file ends in the middle of a header" if block else "the file is empty"
            raise damaged(self._path, what, offset=at)
        if header is None and not is_first:
            what = "the archive ends where a long name or a pax header announces a member"
            raise damaged(self._path, what, offset=at)
        return header

    def _extend(self, extension: Extension, header: Header, at: int) -> None:
        what = f"an extended header claims {header.size} bytes"
        if header.size > MAX_EXTENSION:
            raise damaged(self._path, what, offset=at)
        content = self._reader.read(padded(header.size))
        if len(content) < padded(header.size):
            raise damaged(self._path, f"{what}, and the file ends before", offset=at)
        try:
            extension.add(header.kind, content[: header.size])
        except ValueError as error:
            raise damaged(self._path, str(error), offset=at) from None
