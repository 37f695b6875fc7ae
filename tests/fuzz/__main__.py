"""``python -m tests.fuzz --seed S --cases N``: play cases, shrink failures, and print them."""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz.cases import Case


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument("--seconds", type=float, help="no new case after so many")
    parser.add_argument("--no-shrink", action="store_true")
    given = parser.parse_args()
    began, failed, played = time.monotonic(), 0, 0
    numbers = range(given.cases) if given.case is None else [given.case]
    for number in numbers:
        if given.seconds is not None and time.monotonic() - began > given.seconds:
            break
        case, played = Case.drawn(given.seed, number), played + 1
        failure = case.play()
        if failure is None:
            continue
        failed += 1
        if not given.no_shrink:
            case, failure = case.shrunk(failure)
        print(f"--seed {given.seed} --case {number}\n{case}\n{failure}\n", flush=True)
    print(f"{played} cases in {time.monotonic() - began:.0f} s, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
