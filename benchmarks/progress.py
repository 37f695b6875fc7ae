"""Progress bars: continuous on a terminal, a line every half minute in a log."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm


def progress_bar(title: str, total: int, *, unit: str) -> tqdm[Any]:
    """Return a bar of ``total`` units on standard error."""
    seconds = 0.1 if sys.stderr.isatty() else 30.0
    return tqdm(total=total, desc=title, unit=unit, dynamic_ncols=True, mininterval=seconds)
