"""Processes that read inputs, so that a crash, a hang or a want of memory is a finding."""

from __future__ import annotations

import faulthandler
import mmap
import os
import pickle
import resource
import signal
import struct
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.fuzz.inputs.kind import MIB

MOST_SECONDS = 20.0
"""Processor time allowed for one input, in seconds."""
_TO_BEGIN = 60.0
"""Processor time allowed for the examples, in seconds."""
_ASLEEP = 1000.0
"""Seconds after which an idle child is ended, however loaded the machine is."""
_ADDRESS_SPACE = 3072 * MIB
"""Bytes that a child may allocate beyond those it has at its start."""
_PLACE = struct.Struct("<q")

Note = Callable[[int], None]
"""Records the child's place in memory that outlives it."""


@dataclass(frozen=True)
class Ended:
    """Result of a child."""

    value: Any = None
    """Return value of its task."""
    place: int = -1
    """The last place that it recorded."""
    death: str | None = None
    """Why it returned nothing."""
    said: str = ""
    """The end of its standard error."""


def in_child(task: Callable[[Path, Note], Any]) -> Ended:
    """Run a task in a forked child, in a folder of its own; return the result.

    Raises:
        RuntimeError: the task failed before it recorded a place.
    """
    shared = mmap.mmap(-1, _PLACE.size)

    def note(place: int) -> None:
        shared[:] = _PLACE.pack(place)

    note(-1)
    place_of_files = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with (
        tempfile.TemporaryDirectory(dir=place_of_files, ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as answer,
        tempfile.TemporaryFile() as complaints,
    ):
        pid = os.fork()
        if pid == 0:
            os.dup2(complaints.fileno(), 2)
            _run(task, Path(folder), note, answer.fileno())
        was_ended = _wait(pid, lambda: _PLACE.unpack(shared[:])[0])
        code = os.waitstatus_to_exitcode(was_ended[1])
        answer.seek(0), complaints.seek(0)
        text, said = answer.read(), complaints.read()[-4000:].decode(errors="replace")
    (place,) = _PLACE.unpack(shared[:])
    if code == 0:
        return Ended(value=pickle.loads(text), place=place, said=said)
    if place < 0:
        raise RuntimeError(f"a child has ended ({code}) before it began to read:\n{said}")
    hung = "does not come to an end"
    return Ended(
        place=place, death=hung if was_ended[0] else f"ends the process ({code})", said=said
    )


def _run(task: Callable[[Path, Note], Any], folder: Path, note: Note, answer: int) -> None:
    """Run the task in the child; never return."""
    code = 70
    try:
        faulthandler.enable()
        torch.set_num_threads(1)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + _ADDRESS_SPACE
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        value = task(folder, note)
        with open(answer, "wb", closefd=False) as file:
            pickle.dump(value, file)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _wait(pid: int, place: Callable[[], int]) -> tuple[bool, int]:
    """Return whether the child had to be ended for lack of progress, and its status."""
    last, used, since = -1, 0.0, time.monotonic()
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return False, status
        now = place()
        if now != last:
            last, used, since = now, _processor_seconds(pid), time.monotonic()
        elif (
            _processor_seconds(pid) - used > (_TO_BEGIN if now < 0 else MOST_SECONDS)
            or time.monotonic() - since > _ASLEEP
        ):
            os.kill(pid, signal.SIGKILL)
            return True, os.waitpid(pid, 0)[1]
        time.sleep(0.01)


def _processor_seconds(pid: int) -> float:
    """Return the processor time that a child has used, or 0 if it has just ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
