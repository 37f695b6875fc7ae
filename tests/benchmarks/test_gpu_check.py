"""The GPU check reports parts that hang, fail or find no GPU."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu_check
from benchmarks.gpu import ledger, timed_part
from benchmarks.gpu.timed_part import Part, run_part
from benchmarks.gpu_check import NO_GPU, main, read_test_log, table
from stateful_gpu_loader.decoders import BATCH_DECODERS

LOG = """\
tests/gpu/test_a.py::test_one PASSED                                [ 25%]
tests/gpu/test_a.py::test_two[with a space] FAILED                  [ 50%]
tests/gpu/test_a.py::test_three SKIPPED (there is one GPU)          [ 75%]
tests/gpu/test_a.py::test_four ERROR                                [ 80%]
tests/gpu/test_a.py::test_that_hangs
"""


def test_verdicts_are_read_as_far_as_the_tests_came() -> None:
    found = read_test_log(LOG)
    assert found["verdicts"] == {
        "tests/gpu/test_a.py::test_one": "passed",
        "tests/gpu/test_a.py::test_two[with a space]": "failed",
        "tests/gpu/test_a.py::test_three": "skipped",
        "tests/gpu/test_a.py::test_four": "error",
    }
    assert found["skipped"] == {"there is one GPU": 1}


@pytest.mark.benchmarks
@pytest.mark.parametrize("processes", [[], ["-n", "2", "-rs"]], ids=["one", "two"])
def test_what_pytest_prints_is_what_is_read(tmp_path: Path, processes: list[str]) -> None:
    """With the check's options, in a terminal of the declared width."""
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_real.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('word', ['a b', 'c::d'])\n"
        "def test_word(word):\n    assert word == 'a b'\n"
        "@pytest.fixture\ndef broken():\n    raise KeyError\n"
        "def test_error(broken):\n    pass\n"
        "def test_skip():\n    pytest.skip('a long reason, ' * 8)\n"
    )
    options = ["-vv", "-o", "addopts=", "-p", "no:cacheprovider", *processes]
    options += ["tests/test_real.py"]
    part = Part(name="tests", command=[sys.executable, "-m", "pytest", *options], seconds=120)
    outcome = run_part(part, tmp_path / "log", gpu_check.variables(), tmp_path)
    found = read_test_log((tmp_path / "log").read_text(encoding="utf-8"))
    assert outcome.code == 1
    assert found["verdicts"] == {
        "tests/test_real.py::test_word[a b]": "passed",
        "tests/test_real.py::test_word[c::d]": "failed",
        "tests/test_real.py::test_error": "error",
        "tests/test_real.py::test_skip": "skipped",
    }
    assert next(iter(found["skipped"])).startswith("a long reason, a long reason, ")


@pytest.mark.benchmarks
def test_a_part_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed_part, "GRACE_SECONDS", 0.5)
    program = "sleep 600 & echo $!; wait"  # a background job of a shell ignores SIGINT
    part = Part(name="hangs", command=["sh", "-c", program], seconds=2)
    log = tmp_path / "log"
    outcome = run_part(part, log, {}, tmp_path)
    assert outcome.timed_out
    assert not outcome.is_good
    child = int(log.read_text(encoding="utf-8"))
    deadline = time.monotonic() + 20  # the kernel reports the death with a delay
    while not _is_dead(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_part_ends_with_its_own_code_and_output(tmp_path: Path) -> None:
    program = "import os, sys; print(os.environ['WORD']); sys.exit(3)"
    part = Part(name="fails", command=[sys.executable, "-c", program], seconds=60)
    outcome = run_part(part, tmp_path / "log", {"WORD": "heard"}, tmp_path)
    assert (outcome.code, outcome.timed_out, outcome.is_good) == (3, False, False)
    assert (tmp_path / "log").read_text(encoding="utf-8") == "heard\n"


def test_the_table_names_what_failed() -> None:
    tests = {"is_good": False, "timed_out": True, "seconds": 230.0, **read_test_log(LOG)}
    benchmark = {"is_good": True, "timed_out": False, "seconds": 9.0, "lines": ["launch: 90 met"]}
    text = "\n".join(table({"parts": {"tests": tests, "benchmark": benchmark}}))
    assert "tests         NOT GOOD    230 s, cut off" in text
    assert "  1 passed, 1 failed, 1 skipped, 1 error" in text
    assert "  error: tests/gpu/test_a.py::test_four" in text
    assert "  skipped 1: there is one GPU" in text
    assert "benchmark     good" in text
    assert "  launch: 90 met" in text


@pytest.mark.benchmarks
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_it_would_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--output", str(tmp_path / "out")]) == NO_GPU
    said = capsys.readouterr().out
    assert "torch sees no GPU, so nothing was checked" in said
    assert "test_stream_safety.py" in said
    assert "bench_gpu" in said
    assert not (tmp_path / "out").exists()


def test_every_file_with_tests_for_a_gpu_is_run() -> None:
    files = gpu_check.test_files()
    assert files[:2] == ["tests/gpu/test_stream_safety.py", "tests/gpu/test_exact_resume.py"]
    folder = gpu_check.ROOT / "tests" / "gpu"
    expected = {f"tests/gpu/{path.name}" for path in folder.glob("test_*.py")}
    assert expected <= set(files)
    assert "tests/decoders/test_gpu_decoders.py" in files


@pytest.mark.benchmarks
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_rehearsal_runs_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tests that skip for want of a GPU pass, whatever the environment prints."""
    arguments = ["--rehearse", "--only", "tests", "--tests", "tests/gpu/test_expected_batches.py"]
    assert main([*arguments, "--output", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "stream-safety" not in said
    assert "needs a GPU" in said
    report = json.loads((tmp_path / "gpu_check.json").read_text(encoding="utf-8"))
    assert set(report["parts"]["tests"]["verdicts"].values()) == {"skipped"}
    assert report["parts"]["environment"]["found"]["machine"]


LEDGER = """\
| feature | requirement | tests | last passed | on | figure |
|---|---|---|---|---|---|
| all of a file | D8 | `gpu/test_a.py` | not yet run | | |
| one backend | D1 | `decoders/test_b.py[torchvision]` | not yet run | | |
| another | D4 | `decoders/test_b.py[dali]` | not yet run | | |
| one test | D9 | `gpu/test_c.py::test_one` | 2026-12-01 | H100 | 1 test |
| simulated | D9 | on a fake GPU only, `test_d.py` | not yet run | | |
"""


def _report(**verdicts: str) -> dict[str, Any]:
    environment = {"found": {"gpus": [{"name": "H200"}]}}
    names = {
        "a1": "tests/gpu/test_a.py::test_x",
        "a2": "tests/gpu/test_a.py::test_y",
        "tv": "tests/decoders/test_b.py::test_x[photo 4:2:0-torchvision]",
        "dali": "tests/decoders/test_b.py::test_x[photo 4:2:0-dali]",
        "c1": "tests/gpu/test_c.py::test_one[a]",
        "c2": "tests/gpu/test_c.py::test_two",
    }
    tests = {"verdicts": {names[name]: verdict for name, verdict in verdicts.items()}}
    return {"versions": {}, "parts": {"environment": environment, "tests": tests}}


def test_the_ledger_is_filled_with_what_has_passed() -> None:
    report = _report(a1="passed", a2="passed", tv="passed", dali="skipped", c1="failed")
    text, failing = ledger.filled(LEDGER, report, day="2027-01-02")
    before, lines = LEDGER.split("\n"), text.split("\n")
    assert lines[2] == "| all of a file | D8 | `gpu/test_a.py` | 2027-01-02 | H200 | 2 tests |"
    assert lines[3].endswith("| 2027-01-02 | H200 | 1 test |")
    assert [i for i, line in enumerate(lines) if line != before[i]] == [2, 3]
    assert failing == ["one test"]
    with_failure, failing = ledger.filled(LEDGER, _report(a1="passed", a2="error"), day="today")
    assert (with_failure, failing) == (LEDGER, ["all of a file"])


def test_reports_of_several_calls_are_one() -> None:
    """Reports of one machine are merged. The last result of a part or test counts."""
    first, second = _report(a1="failed"), _report(a1="passed")
    first["parts"]["tests"]["verdicts"]["tests/gpu/test_a.py::test_y"] = "passed"
    first["parts"]["benchmark"] = {"lines": ["fast"]}
    whole = ledger.merged([first, second])
    assert whole["parts"]["tests"]["verdicts"] == {
        "tests/gpu/test_a.py::test_x": "passed",
        "tests/gpu/test_a.py::test_y": "passed",
    }
    assert whole["parts"]["benchmark"] == {"lines": ["fast"]}
    second["parts"]["environment"]["found"]["gpus"][0]["name"] = "H100"
    with pytest.raises(ValueError, match=r"H100 .* H200"):
        ledger.merged([first, second])


def test_every_test_that_the_ledger_names_is_there() -> None:
    text = ledger.LEDGER.read_text(encoding="utf-8")
    named = ledger.TESTS.findall(text.partition("## Features")[2].partition("\n## ")[0])
    assert len(named) > 20
    for file, function, word in named:
        content = (gpu_check.ROOT / "tests" / file).read_text(encoding="utf-8")
        assert not function or f"def {function}(" in content
        assert word in ("", *BATCH_DECODERS)


def _is_dead(pid: int) -> bool:
    """Return whether the process has ended but was not reaped by its parent."""
    try:
        os.kill(pid, 0)
        return "Z" in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split()[2]
    except (ProcessLookupError, FileNotFoundError):
        return True
