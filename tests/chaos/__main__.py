"""``python -m tests.chaos --minutes 60``: disturb a job of each stream, compare what it gave."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.chaos.streams import STREAMS, prepare
from tests.chaos.supervisor import Supervisor
from tests.chaos.verdict import verdict_on


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="of chaos, all streams together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--streams", nargs="+", choices=list(STREAMS), default=list(STREAMS))
    given = parser.parse_args(arguments)
    is_fine = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        for stream in given.streams:
            supervisor = Supervisor(stream, folder, random.Random(f"{given.seed} {stream}"))
            supervisor.play(60 * given.minutes / len(given.streams))
            is_fine &= _report(supervisor)
    return 0 if is_fine else 1


def _report(supervisor: Supervisor) -> bool:
    found = verdict_on(supervisor.stream, supervisor.folder, supervisor.logs)
    done = ", ".join(f"{n} {kind}" for kind, n in sorted((supervisor.done + found.events).items()))
    growth = ", ".join(f"{what} {a} -> {b}" for what, (a, b) in found.growth.items())
    print(
        f"{supervisor.stream}: {found.compared} batches compared, {found.reached} different ones "
        f"of {found.epochs} epochs, in {len(supervisor.logs)} lives; {done}; "
        f"{len(found.differences)} differences; most growth in {found.judged} lives: {growth}",
    )
    for difference in found.differences[:10]:
        print(f"  {difference}")
    for what, (first, last) in found.grown.items():
        print(f"  {what} grew from {first} to {last}")
    if supervisor.fault:
        print(f"  {supervisor.fault}")
    sys.stdout.flush()
    return not (found.differences or found.grown or supervisor.fault)


if __name__ == "__main__":
    sys.exit(main())
