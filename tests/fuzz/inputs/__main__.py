"""``python -m tests.fuzz.inputs --seed S --inputs N``: read damaged inputs of every kind."""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz.inputs.campaign import Tally, read_inputs, shrunk
from tests.fuzz.inputs.kinds import KINDS

_AT_ONCE = 5000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.inputs", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inputs", type=int, default=10_000, help="of all kinds together")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--seconds", type=float, help="no new thousands after so many")
    parser.add_argument("--input", type=int, help="this number alone, of the one kind")
    given = parser.parse_args()
    if given.input is not None and len(given.kinds) != 1:
        parser.error("--input is a number of one kind: pass --kinds with that one")
    began, total, refused, failed = time.monotonic(), 0, 0, 0
    for name in given.kinds:
        kinds_began = time.monotonic()
        tally = _read(name, given, until=given.seconds and began + given.seconds)
        seconds = time.monotonic() - kinds_began
        print(
            f"{name:22} {tally.read:8} inputs, {tally.refused:8} refused, {len(tally.faults):3} "
            f"faults, {tally.read / max(seconds, 1e-9):7.0f} a second",
            flush=True,
        )
        total, refused, failed = (
            total + tally.read,
            refused + tally.refused,
            failed + len(tally.faults),
        )
    print(f"{total} inputs in {time.monotonic() - began:.0f} s, {refused} refused, {failed} faults")
    return 1 if failed else 0


def _read(name: str, given: argparse.Namespace, *, until: float | None) -> Tally:
    kind = KINDS[name]
    if given.input is not None:
        numbers = range(given.input, given.input + 1)
    else:
        shares = sum(KINDS[each].share for each in given.kinds)
        numbers = range(round(given.inputs * kind.share / shares))
    tally = Tally()
    for first in range(0, len(numbers), _AT_ONCE):
        if until and time.monotonic() > until:
            break
        part = read_inputs(kind, given.seed, numbers[first : first + _AT_ONCE])
        for finding in part.findings:
            if (fault := finding.outcome.fault) not in tally.faults:
                drawn, content = shrunk(kind, given.seed, finding.number, fault)
                print(
                    f"\n--kinds {name} --seed {given.seed} --input {finding.number}: {fault}\n"
                    f"{len(drawn.steps)} changes to example {drawn.example}: {content}\n"
                    f"{finding.outcome.details}",
                    flush=True,
                )
        tally.merge(part)
    return tally


if __name__ == "__main__":
    sys.exit(main())
