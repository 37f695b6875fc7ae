"""Comparison of two results of the quick benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import compare
from tests.prepared_processes import run_script


@pytest.mark.benchmarks
def test_what_got_slower_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--quick", "--output", str(tmp_path), "--data", str(tmp_path / "data")]
    done = run_script("benchmarks.bench_quick", *options, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    before = tmp_path / "quick.json"
    assert compare.main([str(before), str(before)]) == 0
    assert capsys.readouterr().out.count("as before") == 9
    content = json.loads(before.read_text())
    for name, factor in (
        ("photographs", 2.0),
        ("numbers, 16 a batch, 0 workers", 0.5),
        ("import", 1.5),
    ):
        for each in content["comparisons"]:
            if each["of"] == f"ours {name}":
                each["ratio"] = {key: factor * value for key, value in each["ratio"].items()}
    after = tmp_path / "after.json"
    after.write_text(json.dumps(content))
    assert compare.main([str(before), str(after)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith("as before")] == [
        "faster",
        "slower",
        "slower",
    ]
    for name in ("photographs", "import"):
        assert any(line.startswith(f"slower     ours {name} / torch {name}: ") for line in lines)


def test_results_that_cannot_be_compared_are_refused() -> None:
    one = {"benchmark": "quick", "machine": {"cores": 2}, "quick": False}
    for field, value in (("benchmark", "state"), ("machine", {"cores": 4}), ("quick", True)):
        with pytest.raises(ValueError, match=field):
            compare.changes(one, {**one, field: value})


def test_the_load_is_no_other_machine() -> None:
    one, other = (
        {
            "benchmark": "quick",
            "machine": {"cores": 2, "load_average_before": load},
            "quick": False,
            "measurements": [],
            "comparisons": [],
        }
        for load in (0.1, 1.7)
    )
    assert compare.changes(one, other) == []
