"""The command ``bench``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stateful_gpu_loader.cli.loaders import _show_bench
from stateful_gpu_loader.tools.bench import STAGES, BenchReport, ceilings_of
from tests.cli.command import command
from tests.tools.test_bench import rate

FACTORY = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from stateful_gpu_loader import StatefulGPULoader

def make(n=1000):
    return StatefulGPULoader(range(n), batch_size=10)

def make_convertible():
    images = torch.zeros(64, 3, 8, 8, dtype=torch.uint8)
    return DataLoader(TensorDataset(images, torch.arange(64)), batch_size=4)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(FACTORY)
    return tmp_path


def test_no_figure_is_cut_at_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    seconds = dict.fromkeys(STAGES, 0.0123456)
    rates = [rate(n, 123_456.0, idle=0.0123456, **seconds) for n in (0, 1, 2, 4, 8, 16)]
    report = BenchReport(
        cores=16,
        load_average=0.0,
        batch_size=4,
        rates=tuple(rates),
        ceilings=ceilings_of(rates, 16),
        recommendation="Decoding bounds this loader.",
        conversion=None,
    )
    _show_bench(report)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("12,345.6") == len(rates) * (len(STAGES) + 1) + 2 * len(STAGES)
    assert shown.count("123,456") == len(rates)


def test_json_holds_the_report_and_the_picture_is_drawn(folder: Path) -> None:
    options = ("--workers", "0", "--seconds", "0.01", "--json")
    done = command("bench", "train:make", *options, "-o", "bench.svg", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    report = json.loads(done.stdout)
    assert [rate["loader"] for rate in report["rates"]] == ["this loader"]
    assert {"read", "collate"} == {one["stage"] for one in report["ceilings"]}
    assert "<svg" in (folder / "bench.svg").read_text()


def test_text_ends_with_the_recommendation_and_an_error_is_one_sentence(folder: Path) -> None:
    """A sentence reports the gain of a conversion. The loader may be torch's own."""
    options = ("--workers", "0", "--seconds", "0.01")
    done = command("bench", "train.py:make_convertible", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "from_dataloader(loader) delivers" in done.stdout
    assert "times this loader" in done.words
    assert "num_workers=0 delivers" in done.stdout.splitlines()[-1]
    done = command("bench", "train:make", "--workers", "two", cwd=folder)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: --workers 'two' is not a list of numbers. Remedy: ")
    assert done.stderr.count("\n") == 1
