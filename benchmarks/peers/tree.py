"""What the processes of a session take, from what Linux counts."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_NEVER_GIVEN_BACK = ("Pss_Anon:", "Pss_Shmem:")


def processes(leader: int) -> list[int]:
    """The processes of a session, which are the leader and what it and they started."""
    found = []
    for folder in Path("/proc").iterdir():
        fields = _fields(folder.name) if folder.name.isdigit() else []
        if fields and int(fields[3]) == leader:
            found.append(int(folder.name))
    return found


def cpu_seconds(leader: int) -> float:
    """User and system time of all of them, and of those that ended and were waited for."""
    return (
        sum(int(value) for process in processes(leader) for value in _fields(str(process))[11:15])
        / _TICKS
    )


def memory_bytes(leader: int) -> int:
    """Memory of all of them that is no file's, each page that is shared counted once.

    Pages of files, libraries and maps, are left out: the system gives them back when it has to.
    """
    kibibytes = 0
    for process in processes(leader):
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
        except OSError:
            continue
        for line in text.splitlines():
            if line.startswith(_NEVER_GIVEN_BACK):
                kibibytes += int(line.split()[1])
    return kibibytes * 1024


def _fields(process: str) -> list[str]:
    """What /proc/PID/stat says behind the name; nothing if the process has ended."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
