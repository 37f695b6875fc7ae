"""The digest that content ids are made of, block by block."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


class ContentDigest:
    """blake2b of 16 bytes, of what a dataset is made of.

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
        """Blocks with their lengths: what ends one and begins the next cannot be mistaken."""
        for block in blocks:
            self._digest.update(len(block).to_bytes(8, "little"))
            self._digest.update(block)
        return self

    def add_name(self, name: str) -> ContentDigest:
        """A file's name, whatever bytes it is made of."""
        return self.add_blocks([name.encode(errors="surrogateescape")])

    def add(self, content: bytes) -> ContentDigest:
        """Bytes of a length that what was added before tells."""
        self._digest.update(content)
        return self

    def text(self) -> str:
        """32 hexadecimal digits, and the name of the algorithm."""
        return f"blake2b {self._digest.hexdigest()}"
