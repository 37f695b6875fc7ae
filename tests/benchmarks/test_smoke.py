"""The benchmarks run to their end. Their figures are not checked here."""

from __future__ import annotations

import dataclasses
import gc
import importlib.util
import shutil
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_locality, headline, markdown, table
from benchmarks.arguments import Arguments
from benchmarks.format_writers import write
from benchmarks.harness import Contestant, alternate
from benchmarks.results import FOLDER, read_results
from benchmarks.source_files import photograph_files
from benchmarks.source_rates import measure_rates
from benchmarks.source_readers import open_source
from stateful_gpu_loader.decoders import available
from tests.prepared_processes import run_script

ROOT = Path(__file__).parents[2]
HAS_DALI = importlib.util.find_spec("nvidia.dali") is not None
BENCHMARKS = (
    "throughput",
    "sizes",
    "prepared",
    "converted",
    "state",
    "cold",
    "cores",
    "overhead",
    "faults",
    "executors",
    "checkpoint",
    "scale",
    "ray",
    "sources",
    "lanes",
    "locality",
)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the results of a smoke run of each benchmark."""
    folder = tmp_path_factory.mktemp("benchmarks")
    for benchmark in BENCHMARKS:
        options = ["--quick", "--output", str(folder), "--data", str(folder / "data")]
        done = run_script(f"benchmarks.bench_{benchmark}", *options, folder=folder)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_results_hold_values_and_versions_and_name_no_place(output: Path, benchmark: str) -> None:
    content = read_results(output, benchmark)
    assert content is not None
    assert content["command"] == f"python -m benchmarks.bench_{benchmark} --quick"
    assert content["machine"]["cores"] >= 1
    assert {"torch", "torchvision", "torchdata", "NumPy", "Python"} <= set(content["versions"])
    assert content["aims"]
    names = [measurement["name"] for measurement in content["measurements"]]
    assert len(set(names)) == len(names)
    for measurement in content["measurements"]:
        assert measurement["values"]
        assert min(measurement["values"]) >= 0
    text = (output / f"{benchmark}.json").read_text(encoding="utf-8")
    for place in (str(output), str(ROOT), str(Path.home()), socket.gethostname()):
        assert place not in text


def test_every_contestant_that_is_installed_takes_part(output: Path) -> None:
    measurements = _content(output, "throughput")["measurements"]
    names = {measurement["name"] for measurement in measurements}
    assert {"torch_pillow", "torchdata_torchvision", "ours_torchcodec"} <= names
    assert ("dali" in names) == HAS_DALI


def test_every_cpu_decoder_is_run_both_ways(output: Path) -> None:
    content = _content(output, "executors")
    names = {measurement["name"] for measurement in content["measurements"]}
    assert content["settings"]["decoders"][0] == available()[0]
    for decoder in available():
        assert {f"{what}_{decoder}" for what in ("decoding", "images", "batches")} <= names


SHOWN: dict[str, Callable[[float], str]] = {
    "sizes": lambda median: f" {markdown.short(median)} |",
    "converted": lambda median: f"{median:,.0f}",
    **dict.fromkeys(("sources", "lanes", "locality"), markdown.short),
}
"""How the section of each benchmark shows a median."""


@pytest.mark.parametrize("benchmark", SHOWN)
def test_the_section_shows_what_was_measured_and_every_aim(output: Path, benchmark: str) -> None:
    content = _content(output, benchmark)
    text = getattr(table, f"{benchmark}_section")(content)
    assert benchmark != "sizes" or set(content["settings"]) == {"0.2", "3"}
    assert benchmark != "converted" or len(content["measurements"]) == 9
    for measurement in content["measurements"]:
        assert SHOWN[benchmark](measurement["median"]) in text, measurement["name"]
    for aim in content["aims"]:
        assert aim["what"] in text


def test_every_format_is_read_beside_its_reference(output: Path) -> None:
    names = {found["name"] for found in _content(output, "sources")["measurements"]}
    formats = ("folder", "tar", "caffe", "caffe2", "tfrecord", "recordio", "parquet")
    assert {f"{reader} {name}" for name in formats for reader in ("ours", "ours-shuffled")} <= names
    assert {"torchvision folder", "webdataset tar", "pyarrow parquet"} <= names
    for name in ("tar", "caffe", "caffe2", "tfrecord", "recordio"):
        assert (f"dali {name}" in names) == HAS_DALI
        assert (f"dali-shuffled {name}" in names) == HAS_DALI


def test_every_format_resumes_at_both_places(output: Path) -> None:
    names = {found["name"] for found in _content(output, "sources")["measurements"]}
    for name in ("tar", "caffe", "tfrecord", "recordio", "parquet"):
        for peer in ("ours", "torchdata"):
            assert {f"{peer} resume {name} 0%", f"{peer} resume {name} 90%"} <= names
    assert "webdataset resume tar 90%" in names
    assert ("dali resume tfrecord 90%" in names) == HAS_DALI


def test_an_order_by_blocks_reads_fewer_places_than_a_full_shuffle(output: Path) -> None:
    """Counts do not depend on the machine's load."""
    found = markdown.medians_of(_content(output, "locality"))
    for name in ("tar", "parquet"):
        places = {
            order: found[bench_locality.measurement_name("places", name, order)]
            for order in bench_locality.ORDERS
        }
        assert places["window of 1"] < places["everything shuffled"]
    read = {
        order: found[bench_locality.measurement_name("bytes", "parquet", order)]
        for order in bench_locality.ORDERS
    }
    assert read["window of 1"] < read["everything shuffled"]


def test_readers_that_read_something_else_are_not_timed(output: Path, tmp_path: Path) -> None:
    files = photograph_files(192, 12, output / "data")
    shutil.copytree(files.root / "folder", tmp_path / "folder")
    other = dataclasses.replace(files, root=tmp_path)
    samples = ((bytes(data.numpy()), label + 1) for data, label in open_source("folder", files))
    write("parquet", tmp_path / "parquet", samples, count=192, num_files=1, rows=64)
    arguments = Arguments(rounds=1, quick=True, output=tmp_path, data=tmp_path)
    with pytest.raises(ValueError, match=r"192 .* 12 "):
        measure_rates("parquet", other, arguments)


def test_tables_and_picture_are_drawn_from_the_json(output: Path, tmp_path: Path) -> None:
    document, readme = tmp_path / "docs" / "benchmarks.md", tmp_path / "README.md"
    pictures = tmp_path / "docs"
    pictures.mkdir()
    for file, name in ((document, "benchmarks"), (readme, "headline")):
        markers = f"<!-- {name}:start -->\nold\n<!-- {name}:end -->"
        file.write_text(f"before\n{markers}\nafter\n", encoding="utf-8")
    command = [f"--results={output}", f"--document={document}", f"--readme={readme}"]
    table.main([*command, f"--pictures={pictures}"])
    once = document.read_text(encoding="utf-8"), readme.read_text(encoding="utf-8")
    for text, name, link in zip(
        once, ("benchmarks", "headline"), ("throughput.png", "docs/peers.png"), strict=True
    ):
        assert text.startswith(f"before\n<!-- {name}:start -->\n")
        assert text.endswith(f"<!-- {name}:end -->\nafter\n")
        assert "\nold\n" not in text
        assert f"({link})" in text
    for benchmark in ("throughput", "executors"):
        for measurement in _content(output, benchmark)["measurements"]:
            assert f"{measurement['median']:,.0f}" in once[0]
    assert (pictures / "throughput.png").read_bytes().startswith(b"\x89PNG")
    table.main([*command, f"--pictures={pictures}"])
    assert once == (document.read_text(encoding="utf-8"), readme.read_text(encoding="utf-8"))


def test_the_headline_has_six_rows_and_says_what_is_slower() -> None:
    text = headline.headline(FOLDER, Path("docs"))
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == len(headline.ROWS) == 6
    assert sum("times faster |" in row for row in rows) == 5
    assert "times slower |" in rows[-1]
    peers = read_results(FOLDER, "peers")
    assert peers is not None
    for measurement in peers["measurements"]:
        shown = measurement["name"] in {row.theirs for row in headline.ROWS[:3]}
        assert (f"| {measurement['median']:,.0f} images/s | " in text) >= shown


def test_a_document_without_markers_is_left_alone(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    assert "there is no README.md" in table.put_into(readme, "headline", "tables")
    assert not readme.exists()
    readme.write_text("no markers", encoding="utf-8")
    assert "lacks the markers" in table.put_into(readme, "headline", "tables")
    assert readme.read_text(encoding="utf-8") == "no markers"


def test_rounds_are_interleaved_in_every_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "collect", lambda: 0)  # slow, with everything that pytest holds
    ran: list[str] = []

    def measure(name: str) -> float:
        ran.append(name)
        return float(len(ran))

    contestants = [Contestant(name, name, partial(measure, name)) for name in "abc"]
    values = alternate(contestants, rounds=6, title="test", warm_up_rounds=1)
    orders = ["".join(ran[start : start + 3]) for start in range(0, len(ran), 3)]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert len(set(orders[1:])) == 6
    assert all(len(found) == 6 for found in values.values())


def _content(folder: Path, benchmark: str) -> Any:
    content = read_results(folder, benchmark)
    assert content is not None
    return content
