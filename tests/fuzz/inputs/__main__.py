"""``python -m tests.fuzz.inputs --seed S --inputs N``: read damaged inputs of every kind."""

from __future__ import annotations

import argparse
import io
import multiprocessing
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from tests.fuzz.inputs.campaign import Tally, read_inputs, shrunk
from tests.fuzz.inputs.kinds import KINDS

_AT_ONCE = 2000


class _Part(NamedTuple):
    """Inputs of one kind that a process reads in one go."""

    name: str
    seed: int
    numbers: range
    until: float


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.inputs", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inputs", type=int, default=10_000, help="of all kinds together")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no more after these")
    parser.add_argument("--processes", type=int, default=1, help="that read at the same time")
    parser.add_argument("--input", type=int, help="this number alone, of the one kind")
    given = parser.parse_args()
    if given.input is not None and len(given.kinds) != 1:
        parser.error("--input is a number of one kind: pass --kinds with that one")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # Findings hold surrogates.
    began = time.monotonic()
    # The first inputs of all kinds come before the second thousands of any.
    parts = sorted(_parts(given, began), key=lambda part: part.numbers.start)
    tallies: dict[str, Tally] = {name: Tally() for name in given.kinds}
    with multiprocessing.get_context("fork").Pool(given.processes) as pool:
        try:
            for name, tally in pool.imap_unordered(_read, parts):
                tallies[name].merge(tally)
        except KeyboardInterrupt:
            print("interrupted: what was read until then")
    for name, tally in tallies.items():
        print(f"{name:22} {tally}")
    whole = Tally()
    for tally in tallies.values():
        whole.merge(tally)
    print(f"{'all':22} {whole}, {time.monotonic() - began:.0f} s")
    return 1 if whole.faults else 0


def _parts(given: argparse.Namespace, began: float) -> Iterator[_Part]:
    shares = sum(KINDS[name].share for name in given.kinds)
    for name in given.kinds:
        numbers = range(round(given.inputs * KINDS[name].share / shares))
        if given.input is not None:
            numbers = range(given.input, given.input + 1)
        for first in range(0, len(numbers), _AT_ONCE):
            part = numbers[first : first + _AT_ONCE]
            yield _Part(name, given.seed, part, began + given.seconds)


def _read(part: _Part) -> tuple[str, Tally]:
    if time.monotonic() > part.until:
        return part.name, Tally()
    kind = KINDS[part.name]
    tally = read_inputs(kind, part.seed, part.numbers)
    for finding in tally.findings:
        fault = finding.outcome.fault or ""
        drawn, content = shrunk(kind, part.seed, finding.number, fault)
        print(
            f"--kinds {part.name!r} --seed {part.seed} --input {finding.number}: {fault}\n"
            f"{len(drawn.steps)} changes to example {drawn.example}: {content}\n"
            f"{finding.outcome.details}\n",
            flush=True,
        )
    return part.name, tally


if __name__ == "__main__":
    sys.exit(main())
