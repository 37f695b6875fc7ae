"""``python -m tests.chaos --minutes 60``: disturb a job of each stream, compare its batches."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.chaos.streams import STREAMS, prepare
from tests.chaos.supervisor import Supervisor
from tests.chaos.verdict import Verdict, verdict_on


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="of chaos, all streams together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--streams", nargs="+", choices=list(STREAMS), default=list(STREAMS))
    parser.add_argument(
        "--ray", action="store_true", help="workers in a Ray cluster, whose nodes are lost, too"
    )
    given = parser.parse_args(arguments)
    kind = Supervisor
    if given.ray:
        from tests.chaos.ray_nodes import NodeSupervisor  # needs Ray

        kind = NodeSupervisor
    verdicts, done, is_fine = [], Counter[str](), True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        for stream in given.streams:
            supervisor = kind(stream, folder, random.Random(f"{given.seed} {stream}"))
            supervisor.play(60 * given.minutes / len(given.streams))
            verdict = verdict_on(stream, folder, supervisor.logs, supervisor.slack)
            verdicts.append(verdict)
            done += supervisor.done + verdict.events
            is_fine &= _is_fine(supervisor, verdict)
    print(
        f"in all: {sum(each.compared for each in verdicts)} batches compared, {_counts(done)}, "
        f"{sum(len(each.differences) for each in verdicts)} differences, "
        f"{sum(len(each.grown) for each in verdicts)} resources that grew"
    )
    return 0 if is_fine else 1


def _is_fine(supervisor: Supervisor, found: Verdict) -> bool:
    """Print the verdict on a stream; return whether it is fine."""
    growth = ", ".join(f"{what} {a} -> {b}" for what, (a, b) in found.growth.items())
    print(
        f"{supervisor.stream}: {found.compared} batches compared, {found.reached} different ones "
        f"of {found.epochs} epochs, in {len(supervisor.logs)} lives; "
        f"{_counts(supervisor.done + found.events)}; "
        f"{len(found.differences)} differences; most growth in {found.judged} lives: {growth}"
    )
    for difference in found.differences[:10]:
        print(f"  {difference}")
    for what, (first, last) in found.grown.items():
        print(f"  {what} grew from {first} to {last}")
    if supervisor.fault:
        print(f"  {supervisor.fault}")
    sys.stdout.flush()
    return not (found.differences or found.grown or supervisor.fault)


def _counts(of: Counter[str]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(of.items()))


if __name__ == "__main__":
    sys.exit(main())
