"""The benchmarks run to their end; what they measure is no matter here."""

from __future__ import annotations

import doctest
import gc
import importlib.util
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks import summary, table
from benchmarks.harness import Contestant, alternate
from benchmarks.results import read_results
from stateful_gpu_loader.decoders import available

pytest.importorskip("skimage")
pytest.importorskip("sklearn")
pytest.importorskip("tqdm")

ROOT = Path(__file__).parents[2]
BENCHMARKS = ("throughput", "state", "overhead", "faults", "executors", "checkpoint")


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of a smoke run of each benchmark."""
    folder = tmp_path_factory.mktemp("benchmarks")
    for benchmark in BENCHMARKS:
        command = [sys.executable, "-m", f"benchmarks.bench_{benchmark}", "--quick"]
        options = ["--output", str(folder), "--data", str(folder / "data")]
        done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_results_hold_raw_values_versions_and_machine(output: Path, benchmark: str) -> None:
    content = read_results(output, benchmark)
    assert content is not None
    assert content["command"] == f"python -m benchmarks.bench_{benchmark} --quick"
    assert content["machine"]["cores"] >= 1
    assert {"torch", "torchvision", "torchdata", "NumPy", "Python"} <= set(content["versions"])
    assert content["aims"]
    for measurement in content["measurements"]:
        assert measurement["values"]
        assert min(measurement["values"]) >= 0


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_results_name_no_place(output: Path, benchmark: str) -> None:
    text = (output / f"{benchmark}.json").read_text(encoding="utf-8")
    for place in (str(output), str(ROOT), str(Path.home()), socket.gethostname()):
        assert place not in text


def test_every_contestant_that_is_installed_takes_part(output: Path) -> None:
    measurements = _content(output, "throughput")["measurements"]
    names = {measurement["name"] for measurement in measurements}
    assert {"torch_pillow", "torchdata_torchvision", "ours_torchcodec"} <= names
    assert ("dali" in names) == (importlib.util.find_spec("nvidia.dali") is not None)


def test_every_cpu_decoder_is_run_both_ways(output: Path) -> None:
    content = _content(output, "executors")
    names = {measurement["name"] for measurement in content["measurements"]}
    assert content["settings"]["decoders"][0] == available()[0]
    for decoder in available():
        assert {f"{what}_{decoder}" for what in ("decoding", "images", "batches")} <= names


def test_tables_and_picture_are_drawn_from_the_json(output: Path, tmp_path: Path) -> None:
    readme, picture = tmp_path / "README.md", tmp_path / "docs" / "throughput.png"
    readme.write_text(f"before\n{table.START}\nold\n{table.END}\nafter\n", encoding="utf-8")
    table.main([f"--results={output}", f"--readme={readme}", f"--picture={picture}"])
    once = readme.read_text(encoding="utf-8")
    assert once.startswith(f"before\n{table.START}\n")
    assert once.endswith(f"{table.END}\nafter\n")
    assert "old" not in once
    assert "(docs/throughput.png)" in once
    for measurement in _content(output, "throughput")["measurements"]:
        assert f"{measurement['median']:,.0f}" in once
    for measurement in _content(output, "executors")["measurements"]:
        assert f"{measurement['median']:,.0f}" in once
    assert picture.read_bytes().startswith(b"\x89PNG")
    table.main([f"--results={output}", f"--readme={readme}", f"--picture={picture}"])
    assert readme.read_text(encoding="utf-8") == once


def test_a_readme_without_markers_is_left_alone(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    assert "there is no README.md" in table.put_into(readme, "tables")
    assert not readme.exists()
    readme.write_text("no markers", encoding="utf-8")
    assert "lacks the markers" in table.put_into(readme, "tables")
    assert readme.read_text(encoding="utf-8") == "no markers"


def test_rounds_are_interleaved_in_every_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "collect", lambda: 0)  # slow, with all that pytest holds
    ran: list[str] = []

    def measure(name: str) -> float:
        ran.append(name)
        return float(len(ran))

    contestants = [
        Contestant(name=name, label=name, measure=partial(measure, name)) for name in "abc"
    ]
    values = alternate(contestants, rounds=6, title="test", warm_up_rounds=1)
    orders = ["".join(ran[start : start + 3]) for start in range(0, len(ran), 3)]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert len(set(orders[1:])) == 6
    assert all(len(found) == 6 for found in values.values())


def test_examples_of_the_summaries_hold() -> None:
    assert doctest.testmod(summary).failed == 0


def _content(folder: Path, benchmark: str) -> Any:
    content = read_results(folder, benchmark)
    assert content is not None
    return content
