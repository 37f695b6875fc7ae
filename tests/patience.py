"""Time limits after which a test calls another process hung.

No test depends on the machine's speed. Limits are multiples of the time that a process took to
start on this machine, in this run. They only end tests that would hang forever.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import time

_USUAL = 0.05
"""Seconds that an interpreter takes to start on an idle machine."""


def seconds(usual: float) -> float:
    """Return a limit for work of up to ``usual`` seconds on an idle machine of two cores."""
    return usual * slowness()


@functools.cache
def slowness() -> float:
    """Return how many times slower than an idle machine this one is now, times ten for patience."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import json, subprocess"], check=True)
    return 10 * max(1.0, (time.perf_counter() - began) / _USUAL)
