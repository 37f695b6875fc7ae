"""Merges several checks into one report, and records it: ``python -m benchmarks.gpu.ledger DIR
...``.

The folders were written by ``gpu_check``. If several contain a part or a test, the last one counts.
In ``docs/gpu-verification.md``, each row with passed and no failed tests gets the day, the GPU and
the number of tests. Other rows are unchanged; rows with a failure are printed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_check import ROOT, table

LEDGER = ROOT / "docs" / "gpu-verification.md"
TESTS = re.compile(r"`([\w/]+\.py)(?:::(\w+))?(?:\[(\w+)\])?`")
"""A file, optionally a test in it and a word in the test's case."""


def main(given: Sequence[str] | None = None) -> None:
    """Print the merged report's table, and record it in the ledger."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, help="outputs of gpu_check, oldest first")
    parser.add_argument("--day", default=datetime.date.today().isoformat(), help="of the runs")
    parser.add_argument("--ledger", type=Path, default=LEDGER, help="the document to fill in")
    arguments = parser.parse_args(given)
    report = merged([_report(folder) for folder in arguments.folders])
    print("\n".join(table(report)))
    text, failing = filled(arguments.ledger.read_text(encoding="utf-8"), report, day=arguments.day)
    arguments.ledger.write_text(text, encoding="utf-8")
    print("\n".join(f"not entered: {feature}" for feature in failing))


def merged(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one report of all parts.

    Raises:
        ValueError: the reports are from different GPUs or versions.
    """
    whole: dict[str, Any] = {"versions": reports[0]["versions"], "parts": {}}
    for report in reports:
        if report["versions"] != whole["versions"] or _gpu(report) != _gpu(reports[0]):
            raise ValueError(
                f"the reports are not of one machine: {_gpu(report)} with {report['versions']}, "
                f"{_gpu(reports[0])} with {whole['versions']}. Remedy: enter one after the other"
            )
        for name, part in report["parts"].items():
            earlier = whole["parts"].get(name, {})
            whole["parts"][name] = dict(part)
            if "verdicts" in part:
                verdicts = {**earlier.get("verdicts", {}), **part["verdicts"]}
                whole["parts"][name]["verdicts"] = verdicts
    return whole


def filled(text: str, report: Mapping[str, Any], *, day: str) -> tuple[str, list[str]]:
    """Return the ledger with the passed tests, and the features with a failure.

    >>> row = "| resuming | B2 | `gpu/test_resume.py` | not yet run | | |"
    >>> found = {"found": {"gpus": [{"name": "H100"}]}}
    >>> tests = {"verdicts": {"tests/gpu/test_resume.py::test_a[cuda]": "passed"}}
    >>> filled(row, {"parts": {"environment": found, "tests": tests}}, day="2026-12-01")
    ('| resuming | B2 | `gpu/test_resume.py` | 2026-12-01 | H100 | 1 test |', [])
    """
    verdicts = {
        name: verdict
        for part in report["parts"].values()
        for name, verdict in part.get("verdicts", {}).items()
    }
    lines, failing = text.split("\n"), []
    for i, line in enumerate(lines):
        cells = [cell.strip() for cell in line.split("|")]
        tests = cells[3] if cells[4:] else ""
        found = [verdict for name, verdict in verdicts.items() if _is_among(name, tests)]
        if "failed" in found or "error" in found:
            failing.append(cells[1])
        elif passed := found.count("passed"):
            figure = f"{passed} test{'s' * (passed > 1)}"
            lines[i] = f"| {' | '.join([*cells[1:4], day, _gpu(report), figure])} |"
    return "\n".join(lines), failing


def _is_among(name: str, cell: str) -> bool:
    """Whether a row's tests include this one."""
    path, _, test = name.partition("::")
    function, _, case = test.partition("[")
    for file, only, word in TESTS.findall(cell):
        words = re.split(r"[-\]]", case)
        if path == f"tests/{file}" and only in ("", function) and (not word or word in words):
            return True
    return False


def _gpu(report: Mapping[str, Any]) -> str:
    return str(report["parts"]["environment"]["found"]["gpus"][0]["name"])


def _report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "gpu_check.json").read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    main()
