"""``python -m tests.fuzz --seed S --cases N``: play cases, shrink what fails, and print it."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.fuzz.cases import Case


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument("--seconds", type=float, help="no new case after so many")
    parser.add_argument("--no-shrink", action="store_true")
    given = parser.parse_args()
    began, found, played = time.monotonic(), Counter[str](), 0
    numbers = range(given.cases) if given.case is None else [given.case]
    for number in numbers:
        if given.seconds is not None and time.monotonic() - began > given.seconds:
            break
        case, played = Case.drawn(given.seed, number), played + 1
        failure = case.play()
        if failure is None:
            continue
        found[failure.known or "NEW"] += 1
        if not given.no_shrink:
            case, failure = case.shrunk(failure)
        print(f"--seed {given.seed} --case {number}\n{case}\n{failure}\n", flush=True)
    print(f"{played} cases in {time.monotonic() - began:.0f} s, {found.total()} failed")
    for name, count in found.items():
        print(f"  {count} {name}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
