"""Looks for states as the tools do, in a process that a hostile file cannot fill or stop."""

from __future__ import annotations

import json
import pathlib
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.checkpoint import filesystem, metadata

from stateful_gpu_loader.tools.state_files import NoState, search

ROOM = 1 << 30
"""Bytes of memory that the search may add to those of the imports."""
WATCHED = (
    *(pathlib.PosixPath, pathlib.PurePosixPath, pathlib.Path, filesystem._StorageInfo),
    *(metadata.Metadata, metadata.MetadataIndex, metadata._MEM_FORMAT_ENCODING),
    *(torch.Size, torch.storage.TypedStorage, metadata.TensorProperties),
)


@dataclass(frozen=True)
class Outcome:
    """What a search found, and what it did to its process."""

    states: list[str]
    """Paths below the top, each with the state's place."""
    reasons: list[str]
    changed: list[str]
    """Attributes of classes that are others than before."""


def guarded_search(path: Path) -> Outcome:
    """Search in a process with little memory, which is ended where it hangs."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.tools.guarded", str(path)],
        capture_output=True,
        cwd=Path(__file__).parents[2],
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    return Outcome(**json.loads(done.stdout))


def _attributes() -> dict[str, int]:
    return {
        f"{kind.__name__}.{name}": id(value)
        for kind in WATCHED
        for name, value in vars(kind).items()
        if not name.startswith("__")
    }


def main(path: Path) -> None:
    """Print the outcome of one search as JSON."""
    before = _attributes()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        found = search(path)
        states = [f"{each.path.relative_to(path)}:{each.where}" for each in found.states]
        reasons = [each.reason for each in found.unreadable]
    except NoState as error:
        states, reasons = [], [str(error)]
    after = _attributes()
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    print(json.dumps({"states": states, "reasons": reasons, "changed": changed}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
