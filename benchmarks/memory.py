"""Memory of a process and its workers, and growth of a process."""

from __future__ import annotations

from pathlib import Path

import psutil

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


class PeakGrowth:
    """Peak resident memory since the object was made, minus the resident memory at that time.

    Linux only: the peak is ``VmHWM``. It is reset at the start, so that a short peak during
    imports does not hide later ones.
    """

    def __init__(self) -> None:
        _CLEAR.write_text(_RESET_PEAK, encoding="ascii")
        self._before = _kibibytes("VmRSS")

    def mebibytes(self) -> float:
        """Return the growth in MiB."""
        return max(0, _kibibytes("VmHWM") - self._before) / 1024


def mebibytes_of_all_processes() -> float:
    """Return MiB of this process and its workers; shared pages are divided among them."""
    this, found = psutil.Process(), 0
    for process in (this, *this.children(recursive=True)):
        try:
            found += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return found / 2**20


def _kibibytes(field: str) -> int:
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise OSError(f"{_STATUS} has no {field}. Remedy: run the benchmark on Linux")
