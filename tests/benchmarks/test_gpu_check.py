"""The GPU check: a part that hangs, fails or finds no GPU is told as it is."""

from __future__ import annotations

import doctest
import os
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_check
from benchmarks.gpu import timed_part
from benchmarks.gpu.timed_part import Part, run_part
from benchmarks.gpu_check import NO_GPU, main, read_test_log, table

LOG = """\
tests/gpu/test_a.py::test_one PASSED                                [ 25%]
tests/gpu/test_a.py::test_two[with a space] FAILED                  [ 50%]
tests/gpu/test_a.py::test_three SKIPPED (there is one GPU)          [ 75%]
tests/gpu/test_a.py::test_four ERROR                                [ 80%]
tests/gpu/test_a.py::test_that_hangs
"""


def test_verdicts_are_read_as_far_as_the_tests_came() -> None:
    found = read_test_log(LOG)
    assert found["counts"] == {"passed": 1, "failed": 1, "skipped": 1, "error": 1}
    assert found["failing"] == [
        "tests/gpu/test_a.py::test_two[with a space]",
        "tests/gpu/test_a.py::test_four",
    ]
    assert found["skipped"] == {"there is one GPU": 1}
    assert doctest.testmod(gpu_check).failed == 0


@pytest.mark.benchmarks
def test_what_pytest_prints_is_what_is_read(tmp_path: Path) -> None:
    """With the options of the check, in a terminal as wide as it says."""
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
    options = ["-vv", "-o", "addopts=", "-p", "no:cacheprovider", "tests/test_real.py"]
    part = Part(name="tests", command=[sys.executable, "-m", "pytest", *options], seconds=120)
    outcome = run_part(part, tmp_path / "log", gpu_check.variables(), tmp_path)
    found = read_test_log((tmp_path / "log").read_text(encoding="utf-8"))
    assert outcome.code == 1
    assert found["counts"] == {"passed": 1, "failed": 1, "skipped": 1, "error": 1}
    assert set(found["failing"]) == {
        "tests/test_real.py::test_word[c::d]",
        "tests/test_real.py::test_error",
    }
    assert next(iter(found["skipped"])).startswith("a long reason, a long reason, ")


@pytest.mark.benchmarks
def test_a_part_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed_part, "_GRACE_SECONDS", 0.5)
    program = "sleep 600 & echo $!; wait"  # a shell's background job ignores SIGINT
    part = Part(name="hangs", command=["sh", "-c", program], seconds=2)
    log = tmp_path / "log"
    outcome = run_part(part, log, {}, tmp_path)
    assert outcome.timed_out
    assert not outcome.is_good
    child = int(log.read_text(encoding="utf-8"))
    deadline = time.monotonic() + 20  # the system tells it when it comes to it
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
    benchmark = {"is_good": True, "timed_out": False, "seconds": 9.0, "aims": ["launch: 90 met"]}
    text = "\n".join(table({"parts": {"tests": tests, "benchmark": benchmark}}))
    assert "tests        NOT GOOD    230 s, cut off" in text
    assert "  tests/gpu/test_a.py::test_four" in text
    assert "  skipped 1: there is one GPU" in text
    assert "benchmark    good" in text
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


def _is_dead(pid: int) -> bool:
    """Ended, and not yet waited for by its parent."""
    try:
        os.kill(pid, 0)
        return "Z" in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split()[2]
    except (ProcessLookupError, FileNotFoundError):
        return True
