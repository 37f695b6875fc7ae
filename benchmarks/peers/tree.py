"""CPU time and memory of a session's processes, as counted by Linux."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_NEVER_GIVEN_BACK = ("Pss_Anon:", "Pss_Shmem:")


def processes(leader: int) -> list[int]:
    """Return the processes of a session: the leader and its descendants."""
    found = []
    for folder in Path("/proc").iterdir():
        fields = _fields(folder.name) if folder.name.isdigit() else []
        if fields and int(fields[3]) == leader:
            found.append(int(folder.name))
    return found


def cpu_seconds(leader: int) -> float:
    """Return user and system time of these processes, and of ended ones that were waited for."""
    return (
        sum(int(value) for process in processes(leader) for value in _fields(str(process))[11:15])
        / _TICKS
    )


def memory_bytes(leader: int) -> int:
    """Return the memory of these processes outside files, with each shared page counted once.

    Pages of files, libraries and maps are left out, because the system can reclaim them.
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
    """Return the fields of /proc/PID/stat after the name; empty if the process has ended."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
