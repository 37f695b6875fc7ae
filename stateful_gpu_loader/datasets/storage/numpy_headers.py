"""Reading of NumPy's files beside other threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

MAX_READS = 10
"""Maximum number of reads of a file whose header Python fails to parse."""


def read_beside_threads(read: Callable[[], T]) -> T:
    """Call a function that reads headers of NumPy's files, again after a SystemError.

    NumPy parses a header as a Python literal. In CPython 3.11 and 3.12 that raises SystemError for
    a valid literal if another thread parses one at the same time (gh-106905).
    """
    for _ in range(MAX_READS - 1):
        try:
            return read()
        except SystemError:
            continue
    return read()
