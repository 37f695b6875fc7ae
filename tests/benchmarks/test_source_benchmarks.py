"""The benchmarks of sources, lanes and locality run to their end."""

from __future__ import annotations

import dataclasses
import doctest
import importlib.util
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import (
    bench_locality,
    lane_loaders,
    markdown,
    processes,
    record_encoding,
    source_tables,
    table,
)
from benchmarks.arguments import Arguments
from benchmarks.format_writers import write
from benchmarks.results import read_results
from benchmarks.source_files import photograph_files
from benchmarks.source_rates import measure_rates
from benchmarks.source_readers import open_source
from tests.prepared_processes import run_script

for package in ("skimage", "sklearn", "tqdm", "lmdb", "pyarrow", "google_crc32c", "webdataset"):
    pytest.importorskip(package)

ROOT = Path(__file__).parents[2]
BENCHMARKS = ("sources", "lanes", "locality")
SECTIONS: dict[str, Callable[[Any], str]] = {
    "sources": source_tables.sources_section,
    "lanes": source_tables.lanes_section,
    "locality": source_tables.locality_section,
}
HAS_DALI = importlib.util.find_spec("nvidia.dali") is not None


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of a smoke run of each benchmark."""
    folder = tmp_path_factory.mktemp("benchmarks")
    for benchmark in BENCHMARKS:
        options = ["--quick", "--output", str(folder), "--data", str(folder / "data")]
        done = run_script(f"benchmarks.bench_{benchmark}", *options, folder=folder)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_results_hold_values_aims_and_no_place(output: Path, benchmark: str) -> None:
    content = _content(output, benchmark)
    assert content["aims"]
    for measurement in content["measurements"]:
        assert min(measurement["values"]) > 0
    text = (output / f"{benchmark}.json").read_text(encoding="utf-8")
    for place in (str(output), str(ROOT), str(Path.home()), socket.gethostname()):
        assert place not in text


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_every_measurement_has_a_name_of_its_own(output: Path, benchmark: str) -> None:
    names = [found["name"] for found in _content(output, benchmark)["measurements"]]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_the_section_shows_what_was_measured_and_every_aim(output: Path, benchmark: str) -> None:
    content = _content(output, benchmark)
    text = SECTIONS[benchmark](content)
    for measurement in content["measurements"]:
        assert markdown.short(measurement["median"]) in text, measurement["name"]
    for aim in content["aims"]:
        assert aim["what"] in text
    assert text in table.markdown(output, "throughput.png")


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
    """These are counts, which no load of the machine changes."""
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
    with pytest.raises(ValueError, match="ours reads 192 samples, 12 of them different"):
        measure_rates("parquet", other, arguments)


@pytest.mark.parametrize(
    "module", [record_encoding, lane_loaders, markdown, processes, bench_locality]
)
def test_examples_hold(module: ModuleType) -> None:
    done = doctest.testmod(module)
    assert done.attempted > 0
    assert done.failed == 0


def _content(folder: Path, benchmark: str) -> Any:
    content = read_results(folder, benchmark)
    assert content is not None
    return content
