"""Looks for states as the tools do, in a process that a hostile file cannot fill or stop."""

from __future__ import annotations

import json
import pathlib
import resource
import select
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from stateful_gpu_loader.tools.state_files import NoState, search

ROOM = 1 << 30
"""Bytes of memory that the search may add to those of the imports."""
MOST_SECONDS = 300
WATCHED = (
    *(pathlib.PosixPath, pathlib.PurePosixPath, pathlib.Path),
    *(torch.Size, torch.storage.TypedStorage),
)


@dataclass(frozen=True)
class Outcome:
    """Result of a search, and its effects on the process."""

    states: list[str]
    """Paths below the top, each with the state's place."""
    reasons: list[str]
    changed: list[str]
    """Attributes of classes that have changed."""


class Guard:
    """A process with little memory that searches one path after another."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.tools.guarded"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            text=True,
        )

    def search(self, path: Path) -> Outcome:
        """Search below a path; a search that hangs or ends its process fails the test."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(path, file=self._process.stdin, flush=True)
        answered, _, _ = select.select([self._process.stdout], [], [], MOST_SECONDS)
        if not answered:
            self.close()
        return Outcome(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    @property
    def is_alive(self) -> bool:
        """Return whether it can search."""
        return self._process.poll() is None


def _attributes() -> dict[str, int]:
    return {
        f"{kind.__name__}.{name}": id(value)
        for kind in WATCHED
        for name, value in vars(kind).items()
        if not name.startswith("__")
    }


def _searched(path: Path) -> Outcome:
    before = _attributes()
    try:
        found = search(path)
        states = [f"{each.path.relative_to(path)}:{each.where}" for each in found.states]
        reasons = [each.reason for each in found.unreadable]
    except NoState as error:
        states, reasons = [], [str(error)]
    after = _attributes()
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return Outcome(states, reasons, changed)


def main() -> None:
    """Answer each path on stdin by the outcome of its search, as JSON on stdout."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for line in sys.stdin:
        print(json.dumps(asdict(_searched(Path(line.rstrip("\n"))))), flush=True)


if __name__ == "__main__":
    main()
