"""When folders changed last: whether what was once listed is still what they hold.

A folder's times change when an entry is added, removed or renamed, and not when the content of a
file does. The time of modification can be set back, as tar does when it unpacks more into a folder;
the time of change cannot.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]
"""int64 [num_folders, 2]: of each, when it was modified and when it was changed, in nanoseconds."""

YOUNG = 2_000_000_000
"""Nanoseconds within which a folder may change twice and show one time, on the coarsest clocks."""
UNKNOWN = (-1, -1)

_MOUNTS = Path("/proc/self/mountinfo")


def times_before_listing(folder: str) -> tuple[int, int]:
    """The times of a folder that is about to be listed; :data:`UNKNOWN` if they are too young.

    Raises:
        OSError: it cannot be asked.
    """
    now = time.time_ns()
    status = os.stat(folder)
    times = status.st_mtime_ns, status.st_ctime_ns
    return times if max(times) < now - YOUNG else UNKNOWN


def are_unchanged(folders: Iterable[str], times: Times) -> bool:
    """Whether no folder has changed since :func:`times_before_listing` gave its times.

    It is said to have where that cannot be known: on file systems in user space (FUSE), since
    those of object stores leave a folder's times as they are when objects come or go.
    """
    devices: set[int] = set()
    try:
        for folder, before in zip(folders, times.tolist(), strict=True):
            status = os.stat(folder)
            if [status.st_mtime_ns, status.st_ctime_ns] != before:
                return False
            devices.add(status.st_dev)
    except OSError:
        return False
    return devices.isdisjoint(devices_in_user_space())


def devices_in_user_space() -> set[int]:
    """Return the devices of mounted FUSE file systems; none where the system lists no mounts."""
    devices = set()
    try:
        lines = _MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return set()
    for line in lines:
        mount, _, kind = line.partition(" - ")
        if kind.startswith("fuse"):
            major, minor = mount.split()[2].split(":")
            devices.add(os.makedev(int(major), int(minor)))
    return devices
