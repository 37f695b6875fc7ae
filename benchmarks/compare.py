"""Differences in speed between two results, beyond the noise of both.

Ratios between contestants of the same rounds are compared. So the two results may come from times
of different load, but not from different machines.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.summary import Ratio


@dataclass(frozen=True)
class Change:
    name: str
    before: Ratio
    after: Ratio
    more_is_better: bool

    @property
    def verdict(self) -> str:
        """``"slower"`` or ``"faster"`` if the intervals do not overlap; else ``"as before"``.

        >>> times = Ratio(1.0, 0.9, 1.1), Ratio(1.3, 1.2, 1.4)
        >>> Change("", *times, more_is_better=False).verdict
        'slower'
        >>> Change("", *times, more_is_better=True).verdict
        'faster'
        """
        if self.before.low <= self.after.high and self.after.low <= self.before.high:
            return "as before"
        has_grown = self.after.median > self.before.median
        return "faster" if has_grown == self.more_is_better else "slower"


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Return the changes of all ratios that both results contain.

    Args:
        before, after: contents of two files of one benchmark.

    Raises:
        ValueError: results are from different benchmarks or machines, or only one is a smoke run.
    """
    one, other = map(_conditions, (before, after))
    for field in one:
        if one[field] != other[field]:
            raise ValueError(
                f"the results differ in {field}: {one[field]!r} and {other[field]!r}. Remedy: "
                "compare two runs of one benchmark on one machine"
            )
    units = {each["name"]: each["unit"] for each in after["measurements"]}
    earlier = {(each["of"], each["to"]): each["ratio"] for each in before["comparisons"]}
    return [
        Change(
            name=f"{each['of']} / {each['to']}",
            before=Ratio(**earlier[each["of"], each["to"]]),
            after=Ratio(**each["ratio"]),
            more_is_better=units[each["of"]].endswith("/s"),
        )
        for each in after["comparisons"]
        if (each["of"], each["to"]) in earlier
    ]


def _conditions(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the conditions that two results must share; the machine's load may differ."""
    machine = {**content["machine"], "load_average_before": None}
    return {"benchmark": content["benchmark"], "machine": machine, "quick": content["quick"]}


def main(given: Sequence[str] | None = None) -> int:
    """Print all changes; return 1 if anything became slower."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", type=Path, help="JSON of a benchmark")
    parser.add_argument("after", type=Path, help="JSON of the same benchmark, later")
    arguments = parser.parse_args(given)
    contents = [json.loads(path.read_text()) for path in (arguments.before, arguments.after)]
    found = changes(*contents)
    for each in found:
        ratios = " -> ".join(
            f"{one.median:.3f} [{one.low:.3f}, {one.high:.3f}]" for one in (each.before, each.after)
        )
        print(f"{each.verdict:9}  {each.name}: {ratios}")
    return int(any(each.verdict == "slower" for each in found))


if __name__ == "__main__":
    sys.exit(main())
