"""Compression of files as their tools do it, by the ending of a name."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable

import zstandard

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
TARS = {
    ".tar": bytes,
    ".tgz": gzip.compress,
    **{f".tar{ending}": compress for ending, compress in COMPRESS.items()},
}
