"""Loaders, statistics, reports and previews at a prompt and in a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.tools.preview import preview
from stateful_gpu_loader.tools.verify_report import Check, Report
from tests.images import write_photo_folder


class Unsized(Dataset[int]):
    def __len__(self) -> int:
        raise OSError("the index is not here")

    def __getitem__(self, index: int) -> int:
        return index


def test_repr_of_a_loader_names_its_dataset_sizes_and_place(tmp_path: Path) -> None:
    write_photo_folder(tmp_path, num_classes=2, per_class=4)
    source = FolderSource(tmp_path)
    loader = StatefulGPULoader(
        source, batch_size=2, shuffle=True, seed=1, transform=[T.CenterCrop(32)]
    )
    place = "batch_size=2, num_workers=0, epoch={}, position={}"
    beginning = f"StatefulGPULoader({source!r}, "
    assert repr(loader) == f"{beginning}{place.format(0, 0)})"
    batches = iter(loader)
    next(batches)
    assert repr(loader) == f"{beginning}{place.format(0, 2)})"
    list(batches)
    assert repr(loader) == f"{beginning}{place.format(1, 0)})"
    table = loader._repr_html_()
    assert "<tr><th>epoch</th><td>1</td></tr>" in table
    assert "8 files, 2 classes" in table


def test_repr_of_a_loader_draws_no_seed() -> None:
    """A seed that is not given is drawn at the first iteration, and not when somebody looks."""
    seeds = set()
    for look in (repr, StatefulGPULoader._repr_html_, str, lambda loader: None):
        torch.manual_seed(1)
        loader: StatefulGPULoader[Any] = StatefulGPULoader(range(8), shuffle=True)
        look(loader)
        torch.manual_seed(2)
        seeds.add(loader.state_dict()["seed"])
    assert len(seeds) == 1


def test_a_loader_with_any_dataset_has_a_repr() -> None:
    assert "Dataset of 3" in repr(StatefulGPULoader(torch.utils.data.TensorDataset(torch.ones(3))))
    assert "list of 2," in repr(StatefulGPULoader(["<b>" * 1000] * 2))
    loader = StatefulGPULoader(Unsized(), sampler=[0, 1])
    assert repr(loader).startswith("StatefulGPULoader(Unsized, batch_size=1")
    unfinished = object.__new__(StatefulGPULoader)
    assert repr(unfinished) == "StatefulGPULoader(not built)"


def test_statistics_are_rounded() -> None:
    loader = StatefulGPULoader(range(10), batch_size=4)
    list(loader)
    shown = repr(loader.stats())
    assert shown.startswith("LoaderStats(elapsed=")
    assert "batches=3, samples=10" in shown
    assert max(len(number.partition(".")[2]) for number in shown[:-1].split(", ")) <= 3


def test_a_report_shows_its_checks_in_a_notebook() -> None:
    checks = (
        Check("2 threads", "batch 1", "exact"),
        Check("inline", "batch 6", "differs", difference="['x']: 3 < 4"),
    )
    report = Report("a loader", 12, checks)
    assert repr(report) == f"<Report of a loader, 12 batches: {report.verdict}>"
    table = report._repr_html_()
    assert table.count("<tr>") == 2
    assert "<td>inline, after batch 6</td><td>[&#x27;x&#x27;]: 3 &lt; 4</td>" in table
    assert report.verdict in table


def test_a_preview_is_pictures_in_a_notebook(tmp_path: Path) -> None:
    write_photo_folder(tmp_path, num_classes=1, per_class=2)
    loader = StatefulGPULoader(
        FolderSource(tmp_path), batch_size=2, seed=1, transform=[T.CenterCrop(32)]
    )
    samples = preview(loader)
    assert len(samples) == 2
    shown = samples._repr_html_()
    assert shown.startswith("<iframe")
    assert shown.count("data:image/png;base64") == 2
