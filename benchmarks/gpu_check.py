"""One call that checks the device stage on a GPU: ``python -m benchmarks.gpu_check --output DIR``.

It reports the machine, runs the tests that need a GPU and the GPU benchmark, each within a budget,
and prints a short table last. ``DIR/gpu_check.json`` is written after every part, so that a part
that hangs, crashes or fails leaves the rest. It ends within ten minutes.

Exit code: 0 where all is well, 1 where a part failed, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.gpu.timed_part import Outcome, Part, run_part

ROOT = Path(__file__).parent.parent
NO_GPU = 2

_ENVIRONMENT, _TESTS, _BENCHMARK = "environment", "tests", "benchmark"
_SECONDS = {_ENVIRONMENT: 45.0, _TESTS: 225.0, _BENCHMARK: 240.0}
"""Budgets: together less than ten minutes, with the ends of parts that hang."""
_SECONDS_A_TEST = 60

_MARK = "gpu"
_FIRST = ("test_stream_safety.py", "test_exact_resume.py", "test_gpu_decoders.py")
"""What matters most: a run may be cut off."""

_TEST_LINE = re.compile(
    r"^(tests/\S+?::.+?) (PASSED|FAILED|ERROR|SKIPPED)(?: \((.*)\))?\s*(?:\[|$)"
)
_LOG_LINES = 40


def main(given: Sequence[str] | None = None) -> int:
    """Run the check; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="folder of JSON and logs")
    parser.add_argument("--tests", nargs="+", help="only these: paths, names")
    parser.add_argument("--only", choices=_SECONDS, help="only this part, after the environment")
    arguments = parser.parse_args(given)
    arguments.output = arguments.output.resolve()
    parts = _parts(arguments)
    if not _has_gpu():
        print("torch sees no GPU, so nothing was checked. This would run:")
        for part in parts:
            print(f"  {part.name}, at most {part.seconds:.0f} s: {' '.join(part.command)}")
        return NO_GPU
    arguments.output.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"versions": results.versions(), "parts": {}}
    for part in parts:
        log = arguments.output / f"{part.name}.log"
        outcome = run_part(part, log, variables(), ROOT)
        report["parts"][part.name] = _found(part, outcome, log, arguments.output)
        path = arguments.output / "gpu_check.json"
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(f"== {part.name}: {outcome.seconds:.0f} s, exit code {outcome.code}", flush=True)
        if not outcome.is_good:
            print("\n".join(log.read_text(encoding="utf-8").splitlines()[-_LOG_LINES:]), flush=True)
    print("\n".join(table(report)))
    return 0 if all(found["is_good"] for found in report["parts"].values()) else 1


def table(report: dict[str, Any]) -> list[str]:
    """The short table that ends the output."""
    lines = ["", "GPU check"]
    for name, found in report["parts"].items():
        verdict = "good" if found["is_good"] else "NOT GOOD"
        cut_off = ", cut off" if found["timed_out"] else ""
        lines.append(f"{name:12} {verdict:8} {found['seconds']:6.0f} s{cut_off}")
        if name == _TESTS:
            counts = ", ".join(f"{number} {kind}" for kind, number in found["counts"].items())
            lines.append(f"  {counts}")
            lines += [f"  {test}" for test in found["failing"]]
            lines += [f"  skipped {number}: {why}" for why, number in found["skipped"].items()]
        lines += [f"  {line}" for line in found.get("aims", [])]
    return lines


def read_test_log(text: str) -> dict[str, Any]:
    """What pytest said of each test, as far as it came.

    Args:
        text: of ``pytest -vv``.

    >>> read_test_log("tests/a.py::test_b[c d] PASSED  [ 50%]\\ntests/a.py::test_e FAILED [100%]")
    {'counts': {'passed': 1, 'failed': 1}, 'failing': ['tests/a.py::test_e'], 'skipped': {}}
    """
    counts: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    failing = []
    for line in text.splitlines():
        found = _TEST_LINE.match(line)
        if found is None:
            continue
        name, verdict, why = found.groups()
        counts[verdict.lower()] += 1
        if verdict in ("FAILED", "ERROR"):
            failing.append(name)
        if verdict == "SKIPPED":
            skipped[why or "no reason given"] += 1
    return {"counts": dict(counts), "failing": failing, "skipped": dict(skipped)}


def _parts(arguments: argparse.Namespace) -> list[Part]:
    python = sys.executable
    pytest = [python, "-m", "pytest", "-vv", "-o", "addopts=", "-o", "filterwarnings=default"]
    pytest += ["-p", "no:cacheprovider", "--continue-on-collection-errors"]
    pytest += ["-m", _MARK, "--tb=short", *(arguments.tests or test_files())]
    pytest += [f"--junitxml={arguments.output / 'tests.xml'}"]
    if importlib.util.find_spec("pytest_timeout") is not None:
        pytest += [f"--timeout={_SECONDS_A_TEST}"]
    commands = {
        _ENVIRONMENT: [python, "-m", "benchmarks.gpu.environment"],
        _TESTS: pytest,
        _BENCHMARK: [python, "-m", "benchmarks.bench_gpu", "--output", str(arguments.output)],
    }
    return [
        Part(name=name, command=commands[name], seconds=seconds)
        for name, seconds in _SECONDS.items()
        if arguments.only in (None, name) or name == _ENVIRONMENT
    ]


def test_files() -> list[str]:
    """The files that have tests for a GPU, in the order in which they are run."""
    files = [
        path.relative_to(ROOT)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if f"mark.{_MARK}" in path.read_text(encoding="utf-8")
    ]
    turns = {name: turn for turn, name in enumerate(_FIRST)}
    files.sort(key=lambda path: turns.get(path.name, len(_FIRST)))
    return [str(path) for path in files]


def _found(part: Part, outcome: Outcome, log: Path, output: Path) -> dict[str, Any]:
    text = log.read_text(encoding="utf-8", errors="replace")
    found: dict[str, Any] = {**asdict(outcome), "is_good": outcome.is_good}
    if part.name == _ENVIRONMENT and outcome.is_good:
        found["found"] = json.loads(text[text.index("{") :])
    if part.name == _TESTS:
        found.update(read_test_log(text))
        found["is_good"] = outcome.is_good and found["counts"].get("passed", 0) > 0
    if part.name == _BENCHMARK:
        content = results.read_results(output, "gpu")
        found["aims"] = [] if content is None else _benchmark_lines(content)
        found["is_good"] = outcome.is_good and content is not None and not content["notes"]
    return found


def _benchmark_lines(content: dict[str, Any]) -> list[str]:
    lines = [
        f"{one['label']:44} {one['median']:12,.4g} {one['unit']}" for one in content["measurements"]
    ]
    for aim in content["aims"]:
        met = "met" if aim["met"] else "NOT MET"
        lines.append(f"{aim['what']}: {aim['reached']} (aim {aim['aim']}) {met}")
    lines += [f"left out: {name}: {why}" for name, why in content["settings"]["missing"].items()]
    return [*lines, *content["notes"]]


def variables() -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "REQUIRE_CUDA": "1",
        "PYTHONPATH": os.pathsep.join(paths),
        "COLUMNS": "250",  # pytest cuts its reasons off there
    }


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    sys.exit(main())
