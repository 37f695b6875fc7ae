"""The document of scale is drawn from its two JSON files. Tars are read from an S3 server."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import bench_object_storage, bench_scale, table
from benchmarks.results import FOLDER, read_results
from tests.prepared_processes import run_script

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("benchmark", ["scale", "object_storage"])
def test_every_figure_of_the_tables_is_measured(benchmark: str) -> None:
    content = read_results(FOLDER, benchmark)
    assert content is not None
    section = next(found[-1] for found in table.SCALE if found[0] == benchmark)
    text = section(content)
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) >= (30 if benchmark == "scale" else 6)
    for aim in content["aims"]:
        assert aim["reached"] in text


def test_all_cases_are_in_the_committed_results() -> None:
    content = read_results(FOLDER, "scale")
    assert content is not None
    names = {measurement["name"] for measurement in content["measurements"]}
    for case in bench_scale.cases():
        assert case.name(bench_scale.STEP) in names
        assert case.name(bench_scale.SIZE) in names


def test_the_document_and_its_pictures_are_drawn_again(tmp_path: Path) -> None:
    document = tmp_path / "scale.md"
    markers = "<!-- scale:start -->\n<!-- scale:end -->\n<!-- object_storage:start -->\n"
    document.write_text(f"{markers}<!-- object_storage:end -->\n", encoding="utf-8")
    others = [f"--document={document}", f"--readme={tmp_path / 'readme'}", f"--pictures={tmp_path}"]
    table.main([f"--results={FOLDER}", *others])
    drawn = document.read_text(encoding="utf-8")
    for name in ("scale", "object-storage"):
        assert f"]({name}.png)" in drawn
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    committed = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    for benchmark in ("scale", "object_storage"):
        start, end = f"<!-- {benchmark}:start -->", f"<!-- {benchmark}:end -->"
        part = drawn.partition(start)[2].partition(end)[0]
        assert part in committed, "run python -m benchmarks.table"


def test_tars_are_read_from_an_s3_server(tmp_path: Path) -> None:
    pytest.importorskip("moto")
    pytest.importorskip("s3fs")
    options = ["--quick", "--output", str(tmp_path), "--data", str(tmp_path / "data")]
    done = run_script("benchmarks.bench_object_storage", *options, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    content = read_results(tmp_path, "object_storage")
    assert content is not None
    found = {measurement["name"]: measurement["median"] for measurement in content["measurements"]}
    latency = bench_object_storage.LATENCIES[0]
    for way in (bench_object_storage.BLOCKS, bench_object_storage.SHARDS):
        name = f"{bench_object_storage.REQUESTS} {bench_object_storage.rate_name(way, latency)}"
        assert 0 < found[name] < 0.2
    assert str(tmp_path) not in (tmp_path / "object_storage.json").read_text(encoding="utf-8")
