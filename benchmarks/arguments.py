"""Common command line of the benchmarks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import photographs, results


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Amount of measurement, and folders."""

    rounds: int
    quick: bool
    """Whether everything is done once on very little data, to check that it runs."""
    output: Path
    data: Path
    load_average: float = field(default_factory=results.load_average)
    """Runnable processes of the machine in the minute before the first round."""

    @property
    def warm_up_rounds(self) -> int:
        """Number of rounds that do not count."""
        return 0 if self.quick else 1

    def make_results(self, benchmark: str, **found: Any) -> results.Results:
        """Return the results of a run with these arguments; ``found`` are the other fields."""
        return results.Results(
            benchmark=benchmark,
            rounds=self.rounds,
            quick=self.quick,
            load_average=self.load_average,
            **found,
        )

    def report(self, benchmark: str, **found: Any) -> None:
        """Write the JSON file from :meth:`make_results`, and print medians, ratios and aims."""
        self.make_results(benchmark, **found).write_and_tell(self.output)


def parse(description: str | None, rounds: int, given: Sequence[str] | None) -> Arguments:
    """Read the command line of one benchmark.

    Args:
        description: description of the program; its first line is shown.
        rounds: default number of rounds.
        given: replaces ``sys.argv``.
    """
    found = parse_options(description, given)
    return Arguments(
        rounds=1 if found.quick else found.rounds or rounds,
        quick=found.quick,
        output=found.output,
        data=found.data,
    )


def parse_options(description: str | None, given: Sequence[str] | None) -> argparse.Namespace:
    """Return only the options; ``rounds`` is None if it was not given."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, help="measurements of each, instead of the usual")
    parser.add_argument("--quick", action="store_true", help="one round, few files: a smoke run")
    parser.add_argument("--output", type=Path, default=results.FOLDER, help="folder of the JSON")
    parser.add_argument("--data", type=Path, default=photographs.FOLDER, help="folder of the files")
    found = parser.parse_args(given)
    if found.rounds is not None and found.rounds < 1:
        parser.error(f"--rounds {found.rounds}: there must be at least one")
    if found.quick and found.output == results.FOLDER:
        parser.error("--quick needs --output: the committed results are not for smoke runs")
    return found
