"""What tar writers put before a member's header: long names, and pax records.

GNU tar writes a long name as a member of the kind ``L``; POSIX.1-2001 (pax) writes records of
any kind before one member (``x``) or all that follow (``g``).
"""

from __future__ import annotations

LONG_NAME, LONG_LINK, PAX, PAX_OF_SOLARIS, PAX_GLOBAL = b"L", b"K", b"x", b"X", b"g"

EXTENSIONS = frozenset((LONG_NAME, LONG_LINK, PAX, PAX_OF_SOLARIS, PAX_GLOBAL))
"""Kinds of headers that belong to the member behind them."""

MAX_EXTENSION = 1 << 20
"""Bytes: no name is longer."""

_SPARSE = "holds a sparse file, which has no content of its own in one piece"


class Extension:
    """What extensions say about the member behind them; the first of two wins, as in tarfile.

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
