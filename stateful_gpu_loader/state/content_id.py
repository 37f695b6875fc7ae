"""The digest that a dataset's content id is made of."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


class ContentDigest:
    """A digest of a dataset's content: blake2b of 16 bytes.

    Args:
        kind: name and version of what is put in, so that no two kinds share an id.

    >>> one = ContentDigest("files 1").add_blocks([b"a", b"bc"])
    >>> other = ContentDigest("files 1").add_blocks([b"ab", b"c"])
    >>> one.text() == other.text()
    False
    """

    def __init__(self, kind: str) -> None:
        self._digest = hashlib.blake2b(kind.encode(), digest_size=16)

    def add_blocks(self, blocks: Iterable[bytes]) -> ContentDigest:
        """Add blocks with their lengths, so that the bounds between them count."""
        for block in blocks:
            self._digest.update(len(block).to_bytes(8, "little"))
            self._digest.update(block)
        return self

    def add_name(self, name: str) -> ContentDigest:
        """Add a file's name, which may be of any bytes."""
        return self.add_blocks([name.encode(errors="surrogateescape")])

    def add(self, content: bytes | memoryview[int]) -> ContentDigest:
        """Add bytes whose length follows from what was added before."""
        self._digest.update(content)
        return self

    def text(self) -> str:
        """32 hexadecimal digits, and the name of the algorithm."""
        return f"blake2b {self._digest.hexdigest()}"
