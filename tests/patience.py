"""How long a test waits for another process before it calls it hung.

No test depends on the machine's speed: limits are multiples of what starting a process took on this
machine, in this run. They end a test that would hang for ever, and nothing else.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import time

_USUAL = 0.05
"""Seconds that an interpreter takes to start on an idle machine."""


def seconds(usual: float) -> float:
    """A limit for what takes at most ``usual`` seconds on an idle machine of two cores."""
    return usual * slowness()


@functools.cache
def slowness() -> float:
    """How many times slower than an idle one this machine is now, and ten to be patient."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import json, subprocess"], check=True)
    return 10 * max(1.0, (time.perf_counter() - began) / _USUAL)
