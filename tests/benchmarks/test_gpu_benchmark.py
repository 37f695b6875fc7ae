"""Parts of the GPU benchmark that need no GPU: its judgements and its timing."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import bench_gpu
from benchmarks.arguments import Arguments
from benchmarks.gpu import results as names
from benchmarks.gpu.kernels_in_use import kernels_in_use, no_result
from benchmarks.gpu.phases import PHASES, a_batch, phases_timed
from benchmarks.gpu.results import GpuResults, aims_of
from benchmarks.photograph_loaders import Pass
from benchmarks.photographs import PhotographFolder
from benchmarks.results import read_results
from stateful_gpu_loader.records import IndexArray
from stateful_gpu_loader.transforms import Compose, PipelineDraw
from stateful_gpu_loader.transforms.batches import ragged
from stateful_gpu_loader.transforms.color import jitter

pytest.importorskip("tqdm")


@pytest.fixture
def results(tmp_path: Path) -> GpuResults:
    """Results of a run on a folder with one file."""
    file = tmp_path / "photo.jpg"
    file.write_bytes(b"0" * 1000)
    folder = PhotographFolder(tmp_path, (file,), (0,), "photographs")
    arguments = Arguments(rounds=3, quick=False, output=tmp_path, data=tmp_path)
    work = Pass(folder=folder, batch_size=4, timed=2, num_workers=1)
    return GpuResults(arguments, work, "gpu", ["torchcodec", "torchvision"])


def _fill(results: GpuResults) -> None:
    for name, values in {
        names.ours("torchcodec"): [9_000, 10_000, 11_000],
        names.ours("torchvision"): [12_500, 13_000, 13_500],
        names.decoding("torchcodec"): [10_000] * 3,
        names.decoding("torchvision"): [14_000] * 3,
        names.JITTERED: [8_000, 9_000, 10_000],
        names.LAUNCH: [120.0, 100.0, 110.0],
        names.WAITING_STREAM: [0.03, 0.01, 0.015],
    }.items():
        results.note(name, name.replace("_", " "), "images/s", values)


def test_aims_are_judged_by_the_best_backend_and_its_ceiling(results: GpuResults) -> None:
    """The jittered loader runs with the first backend, whichever is the fastest."""
    _fill(results)
    found = {aim.what: (aim.reached, aim.aim, aim.met) for aim in aims_of(results)}
    assert found == {
        "images/s, torchvision": ("1.3e+04", ">= 1.2e+04", True),
        "share of the ceiling": ("92.86%", ">= 90.00%", True),
        "what ColorJitter adds": ("11.11%", "< 10.00%", False),
        "the fused launch, us a batch": ("110", "< 150", True),
        "share of a training step without data": ("1.50%", "< 2.00%", True),
    }


def test_what_was_not_measured_is_not_judged(results: GpuResults) -> None:
    assert aims_of(results) == []
    _fill(results)
    assert not any("DALI" in aim.what for aim in aims_of(results))
    results.note(names.DALI, "DALI", "images/s", [13_000] * 3)
    assert any("DALI" in aim.what for aim in aims_of(results))


def test_parts_that_are_done_are_in_the_file(results: GpuResults, tmp_path: Path) -> None:
    _fill(results)
    results.missing["dali"] = "not installed"
    results.notes.append("training failed: RuntimeError: no memory")
    results.write()
    content = read_results(tmp_path, "gpu")
    assert content is not None
    assert content["settings"]["missing"] == {"dali": "not installed"}
    assert json.dumps(content).count("11.11%") == 1
    section = names.gpu_section(content)
    assert "Left out: dali." in section
    assert "training failed" in section
    pairs = {(found["of"], found["to"]) for found in content["comparisons"]}
    assert (names.ours("torchvision"), names.decoding("torchvision")) in pairs
    assert (names.JITTERED, names.ours("torchcodec")) in pairs


def test_the_fallback_of_tritons_kernels_is_named_with_its_reason() -> None:
    """On a CPU Triton does not run."""
    pytest.importorskip("triton")
    for kernels in (ragged._kernels, jitter._kernels):
        kernels.cache_clear()
    found = kernels_in_use(torch.device("cpu"))
    assert found.keys() == {"resampling", "ColorJitter"}
    for kernels_found in found.values():
        assert "torch's operators (triton does not run here, so torch" in kernels_found
    assert "Python's headers" in str(no_result(found))
    assert no_result(dict.fromkeys(found, "Triton 3.6.0")) is None


@pytest.mark.parametrize("runs", [True, False])
def test_the_benchmark_measures_no_fallback(
    results: GpuResults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: bool
) -> None:
    found = {"resampling": "Triton 3.6.0" if runs else "torch's operators (no compiler)"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(bench_gpu, "_work", lambda arguments: results.work)
    monkeypatch.setattr(bench_gpu, "quieten_peers", lambda: None)
    monkeypatch.setattr(bench_gpu, "usable_backends", lambda files: {"torchvision": None})
    monkeypatch.setattr(bench_gpu, "kernels_in_use", lambda device: found)
    measured: list[list[str]] = []
    parts = {"a part": lambda work, given: measured.append(given.backends)}
    with nullcontext() if runs else pytest.raises(SystemExit) as ended:
        bench_gpu.measure("gpu", parts, results.arguments)
    assert measured == ([["torchvision"]] if runs else [])
    content = read_results(tmp_path, "gpu")
    assert content is not None
    assert content["settings"]["kernels"] == found
    if not runs:
        assert ended.value.code == 1
        assert content["measurements"] == content["aims"] == []
        assert "no compiler" in content["notes"][0]


def test_phases_are_timed_and_the_methods_put_back() -> None:
    before = [getattr(owner, name) for methods in PHASES.values() for owner, name in methods]
    recipes = Compose([])
    drawn = recipes.draw(0, 0, *_one_image())
    with phases_timed() as spent:
        _apply(recipes, drawn)
        _apply(recipes, drawn)
    _apply(recipes, drawn)
    assert spent["of it: the recipes"].calls == 2
    assert spent["of it: the recipes"].seconds > 0
    assert spent["of it: the recipes"].cpu_seconds > 0
    assert a_batch(spent, 2)["of it: the recipes"]["calls"] == 1
    assert a_batch(spent, 2)["of it: the decoder"]["calls"] == 0
    after = [getattr(owner, name) for methods in PHASES.values() for owner, name in methods]
    assert after == before


def test_a_method_that_fails_is_timed_and_raises() -> None:
    with phases_timed() as spent, pytest.raises(ValueError, match=r"."):
        Compose([]).apply_batch([], Compose([]).draw(0, 0, *_one_image()))
    assert spent["of it: the recipes"].calls == 1


def _apply(recipes: Compose, drawn: PipelineDraw) -> None:
    recipes.apply_batch([torch.zeros(3, 4, 4, dtype=torch.uint8)], drawn)


def _one_image() -> tuple[IndexArray, IndexArray]:
    """Return a position and a size."""
    return np.arange(1), np.array([[4, 4]])
