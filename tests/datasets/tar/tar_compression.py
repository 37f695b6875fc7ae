"""Compression of tars like their tools do it."""

from __future__ import annotations

import bz2
import gzip
import lzma

import zstandard

COMPRESS = {
    ".tar": bytes,
    ".tar.gz": gzip.compress,
    ".tgz": gzip.compress,
    ".tar.zst": zstandard.ZstdCompressor().compress,
    ".tar.bz2": bz2.compress,
    ".tar.xz": lzma.compress,
}
