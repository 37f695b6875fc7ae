"""One call that checks the device stage on a GPU: ``python -m benchmarks.gpu_check --output DIR``.

It reports the machine, runs the tests that need a GPU and the GPU benchmarks, most informative
first, and prints a short table at the end. ``DIR/gpu_check.json`` is written after every part, so a
part that hangs, crashes or fails does not lose the others. It ends within ``--seconds``. ``--only``
runs some parts; ``python -m benchmarks.gpu.ledger DIR ...`` merges several calls into one report.

Exit code: 0 if everything passed, 1 if a part failed, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.gpu.timed_part import GRACE_SECONDS, Outcome, Part, run_part

ROOT = Path(__file__).parent.parent
NO_GPU = 2
SECONDS = 540.0
_SECONDS_TO_LOOK = 60.0
"""Time for the environment, which loads each decoder's libraries."""

ENVIRONMENT, STREAM_SAFETY, BENCHMARK, TESTS, FULL_MEMORY, SWEEP = (
    "environment",
    "stream-safety",
    "benchmark",
    "tests",
    "full-memory",
    "sweep",
)
PARTS = {ENVIRONMENT: 1, STREAM_SAFETY: 4, BENCHMARK: 6, TESTS: 6, FULL_MEMORY: 2, SWEEP: 3}
"""Parts in order. Each gets its share of the time left for it and the following parts."""
_OF_TESTS = (STREAM_SAFETY, TESTS, FULL_MEMORY)
_RESULTS = {BENCHMARK: "gpu", SWEEP: "gpu_sweep"}
_SECONDS_A_TEST = 60

_MARK = "gpu"
_FIRST = ("test_stream_safety.py", "test_exact_resume.py", "test_gpu_decoders.py")
"""Files of :data:`STREAM_SAFETY`, in which a wrong stream would show."""
_ALONE = ("test_full_memory.py",)
"""Files of :data:`FULL_MEMORY`, which need the whole GPU's memory."""
_AT_ONCE = 8
"""Number of processes that run the other tests if pytest-xdist is installed."""

WANT_OF_A_GPU = "needs a GPU"
"""Beginning of the reason for which a test skips in a rehearsal."""
_TEST_LINE = re.compile(
    r"^(tests/\S+?::.+?) (PASSED|FAILED|ERROR|SKIPPED)(?: \((.*)\))?\s*(?:\[|$)"
)
_LINE_OF_A_PROCESS = re.compile(r"^\[gw\d+\] \[ *\d+%\] ([A-Z]+) (tests/\S+?::.+?)\s*$")
_WHY_SKIPPED = re.compile(r"^SKIPPED \[(\d+)\] \S+: (.*)$")
"""Matches lines of the summary, because a process's own lines have no reason."""
_LOG_LINES = 40


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="folder of JSON and logs")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="these parts, and the environment")
    parser.add_argument("--tests", nargs="+", help="tests instead of all: paths, names")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all parts together")
    parser.add_argument(
        "--rehearse", action="store_true", help="without a GPU: what is there is run, and skips"
    )
    arguments = parser.parse_args(given)
    arguments.output = arguments.output.resolve()
    commands = _commands(arguments)
    if not (_has_gpu() or arguments.rehearse):
        print("torch sees no GPU, so nothing was checked. This would run:")
        for name, command in commands.items():
            print(f"  {name}: {' '.join(command)}")
        return NO_GPU
    arguments.output.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"versions": results.versions(), "parts": {}}
    end = time.monotonic() + arguments.seconds
    for name, command in commands.items():
        shares = [PARTS[each] for each in commands if each not in report["parts"]]
        share = (end - time.monotonic()) * shares[0] / sum(shares)
        least = _SECONDS_TO_LOOK if name == ENVIRONMENT else 1.0
        seconds = max(least, share - 2 * GRACE_SECONDS)
        log = arguments.output / f"{name}.log"
        part = Part(name=name, command=command, seconds=seconds)
        outcome = run_part(part, log, variables(is_rehearsal=arguments.rehearse), ROOT)
        report["parts"][name] = found = _found(name, outcome, log, arguments)
        path = arguments.output / "gpu_check.json"
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(f"== {name}: {outcome.seconds:.0f} s, exit code {outcome.code}", flush=True)
        if not found["is_good"]:
            print("\n".join(log.read_text(encoding="utf-8").splitlines()[-_LOG_LINES:]), flush=True)
    print("\n".join(table(report)))
    return 0 if all(found["is_good"] for found in report["parts"].values()) else 1


def table(report: Mapping[str, Any]) -> list[str]:
    """Return the short table at the end of the output."""
    lines = ["", "GPU check"]
    for name, found in report["parts"].items():
        verdict = "good" if found["is_good"] else "NOT GOOD"
        cut_off = ", cut off" if found["timed_out"] else ""
        lines.append(f"{name:13} {verdict:8} {found['seconds']:6.0f} s{cut_off}")
        if "verdicts" in found:
            counts = Counter(found["verdicts"].values())
            lines.append(f"  {', '.join(f'{count} {kind}' for kind, count in counts.items())}")
            lines += [
                f"  {verdict}: {test}"
                for test, verdict in found["verdicts"].items()
                if verdict in ("failed", "error")
            ]
            lines += [f"  skipped {number}: {why}" for why, number in found["skipped"].items()]
        lines += [f"  {line}" for line in found.get("lines", [])]
    return lines


def read_test_log(text: str) -> dict[str, dict[str, Any]]:
    """Return pytest's verdict on each test, as far as the log goes, and the reasons for skips.

    Args:
        text: output of ``pytest -vv``.

    >>> read_test_log("tests/a.py::test_b[c d] PASSED  [ 50%]\\ntests/a.py::test_e FAILED [100%]")
    {'verdicts': {'tests/a.py::test_b[c d]': 'passed', 'tests/a.py::test_e': 'failed'}, \
'skipped': {}}
    """
    verdicts: dict[str, str] = {}
    skipped: Counter[str] = Counter()
    for line in text.splitlines():
        if found := _LINE_OF_A_PROCESS.match(line):
            verdicts[found[2]] = found[1].lower()
        elif found := _WHY_SKIPPED.match(line):
            skipped[found[2]] += int(found[1])
        elif found := _TEST_LINE.match(line):
            name, verdict, why = found.groups()
            verdicts[name] = verdict.lower()
            if verdict == "SKIPPED":
                skipped[why or "no reason given"] += 1
    return {"verdicts": verdicts, "skipped": dict(skipped)}


def _commands(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Return the command of each part to run; a rehearsal measures nothing."""
    python, output = sys.executable, str(arguments.output)
    first = [path for path in test_files() if Path(path).name in _FIRST]
    alone = [path for path in test_files() if Path(path).name in _ALONE]
    rest = [path for path in test_files() if path not in [*first, *alone]]
    commands = {
        ENVIRONMENT: [python, "-m", "benchmarks.gpu.environment", output],
        STREAM_SAFETY: [*_pytest(arguments.output, STREAM_SAFETY), *first],
        BENCHMARK: [python, "-m", "benchmarks.bench_gpu", "--output", output],
        TESTS: [*_pytest(arguments.output, TESTS), *(arguments.tests or rest)],
        FULL_MEMORY: [*_pytest(arguments.output, FULL_MEMORY), *alone],
        SWEEP: [python, "-m", "benchmarks.bench_gpu_sweep", "--output", output],
    }
    wanted = {ENVIRONMENT, *(arguments.only or PARTS)}
    if arguments.rehearse:
        wanted -= _RESULTS.keys()
    return {name: command for name, command in commands.items() if name in wanted}


def _pytest(output: Path, part: str) -> list[str]:
    options = ["-vv", "-o", "addopts=", "-o", "filterwarnings=default", "-p", "no:cacheprovider"]
    options += ["--continue-on-collection-errors", "-m", _MARK, "--tb=short"]
    options += [f"--junitxml={output / part}.xml"]
    if importlib.util.find_spec("pytest_timeout") is not None:
        options += [f"--timeout={_SECONDS_A_TEST}"]
    if part != FULL_MEMORY and importlib.util.find_spec("xdist") is not None:
        options += ["-n", str(min(_AT_ONCE, os.cpu_count() or 1)), "-rs"]
    return [sys.executable, "-m", "pytest", *options]


def test_files() -> list[str]:
    """Return the files with tests for a GPU, in execution order."""
    files = [
        path.relative_to(ROOT)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if f"mark.{_MARK}" in path.read_text(encoding="utf-8")
    ]
    turns = {name: turn for turn, name in enumerate(_FIRST)}
    files.sort(key=lambda path: turns.get(path.name, len(_FIRST)))
    return [str(path) for path in files]


def _found(name: str, outcome: Outcome, log: Path, given: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {**asdict(outcome), "is_good": outcome.is_good}
    if name == ENVIRONMENT and outcome.is_good:
        path = given.output / "environment.json"
        found["found"] = json.loads(path.read_text(encoding="utf-8"))
        found["lines"] = [f"kernels: {found['found'].get('kernels')}"]
    if name in _OF_TESTS:
        tests = read_test_log(log.read_text(encoding="utf-8", errors="replace"))
        found.update(tests)
        if given.rehearse:
            is_as_expected = all(why.startswith(WANT_OF_A_GPU) for why in tests["skipped"])
        else:
            is_as_expected = "passed" in tests["verdicts"].values()
        found["is_good"] = outcome.is_good and is_as_expected
    if name in _RESULTS:
        content = results.read_results(given.output, _RESULTS[name])
        found["lines"] = [] if content is None else _benchmark_lines(content)
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


def variables(*, is_rehearsal: bool = False) -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "REQUIRE_CUDA": "0" if is_rehearsal else "1",
        "PYTHONPATH": os.pathsep.join(paths),
        "COLUMNS": "250",  # pytest truncates reasons at this width
    }


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    sys.exit(main())
