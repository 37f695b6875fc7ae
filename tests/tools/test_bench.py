"""Measurements of a loader, and the recommendation for given figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.errors import UnsupportedLoader
from stateful_gpu_loader.tools.bench import (
    CONVERTED,
    OURS,
    ROUNDS,
    BenchError,
    Rate,
    analysed,
    bench,
    recommend,
    timed,
)
from stateful_gpu_loader.tools.bench_picture import draw
from tests.images import write_photo_folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> FolderSource:
    root = tmp_path_factory.mktemp("photos")
    write_photo_folder(root, num_classes=2, per_class=8)
    return FolderSource(root)


class Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(10**6))


def pictures(source: FolderSource, transform: Any = None, **arguments: Any) -> Any:
    recipes = [T.RandomResizedCrop(16), T.Normalize([0.5] * 3, [0.5] * 3)]
    return StatefulGPULoader(
        source, batch_size=4, seed=1, transform=transform or recipes, **arguments
    )


def rate(workers: int, speed: float, idle: float = 0.0, **stages: float) -> Rate:
    return Rate(
        loader=OURS,
        num_workers=workers,
        samples_per_second=speed,
        rounds=(speed,),
        stages=stages,
        idle=idle,
    )


def test_each_number_of_workers_is_measured_and_accounts_for_its_time(source: FolderSource) -> None:
    reported: list[tuple[int, int]] = []
    report = bench(
        pictures(source),
        workers=[2, 0],
        seconds=0.01,
        progress=lambda label, done, total: reported.append((done, total)),
    )
    assert [(one.loader, one.num_workers) for one in report.rates] == [(OURS, 0), (OURS, 2)]
    inline = report.rates[0]
    assert len(inline.rounds) == ROUNDS
    assert set(inline.stages) == {"read", "decode", "augment", "collate"}
    assert inline.idle == 0
    # The rates are medians, so one round's time bounds the total work only from above.
    assert sum(inline.stages.values()) <= 1 / min(inline.rounds)
    assert [one.stage for one in report.ceilings] == ["read", "decode", "augment", "collate"]
    assert report.recommendation == recommend(report.rates, report.cores)
    assert report.conversion is None
    assert reported == [(done, 2 * ROUNDS) for done in range(2 * ROUNDS + 1)]


def test_the_legends_of_the_picture_hide_no_bar(
    source: FolderSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = bench(plain_pictures(source, DataLoader), workers=[0], seconds=0.01)
    assert [one.loader for one in report.rates] == [OURS, CONVERTED]
    draw(report, tmp_path / "pictures" / "bench.png")
    assert (tmp_path / "pictures" / "bench.png").read_bytes().startswith(b"\x89PNG")
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path: drawn.append(figure))
    draw(report, tmp_path / "bench.png")
    (figure,) = drawn
    figure.draw_without_rendering()
    for axes in figure.axes:
        legend = axes.get_legend()
        assert legend is not None
        assert legend.get_window_extent().y1 < axes.get_window_extent().y0


def plain_pictures(source: FolderSource, loader_class: Any) -> Any:
    steps = v2.Compose([v2.RandomResizedCrop(16), v2.ToImage()])
    return loader_class(ImageFolder(str(source.root), steps), 4)


@pytest.mark.parametrize("loader_class", [DataLoader, StatefulDataLoader, StatefulGPULoader])
def test_a_plain_dataset_is_measured_beside_its_conversion(
    source: FolderSource, tmp_path: Path, loader_class: Any
) -> None:
    """A22: torch's loaders report no stages, so those of the converted loader are analysed."""
    report = bench(plain_pictures(source, loader_class), workers=[2, 0], seconds=0.01)
    measured = [(one.loader, one.num_workers) for one in report.rates]
    assert measured == [(OURS, 0), (CONVERTED, 0), (OURS, 2), (CONVERTED, 2)]
    name = OURS if loader_class is StatefulGPULoader else CONVERTED
    assert {one.loader for one in analysed(report.rates)} == {name}
    assert "collate" in {one.stage for one in report.ceilings}
    assert "times this loader" in str(report.conversion)
    draw(report, tmp_path / "bench.png")


def test_unconvertible_loaders_are_measured_alone_or_refused() -> None:
    report = bench(StatefulGPULoader(range(100), batch_size=5), workers=[0], seconds=0.01)
    assert [one.loader for one in report.rates] == [OURS]
    assert "loader.dataset" in str(report.conversion)
    with pytest.raises(BenchError) as caught:
        bench(DataLoader(range(100), batch_size=5), workers=[0], seconds=0.01)
    assert isinstance(caught.value.__cause__, UnsupportedLoader)


@pytest.mark.parametrize(
    ("rates", "cores", "text"),
    [
        (
            [rate(0, 100, decode=8e-3, read=2e-3), rate(2, 190, decode=8e-3, read=2e-3)],
            8,
            "Decoding bounds this loader, with 80% of its work: num_workers=2 delivers 190 samples "
            "per second, the most that was measured; more may help, as 8 cores are here: try "
            "--workers 8.",
        ),
        (
            [rate(0, 100, read=1e-2), rate(4, 96, read=9e-2), rate(2, 98, read=5e-2)],
            2,
            "Reading bounds this loader, with 100% of its work: num_workers=0 delivers 100 samples "
            "per second, the most that was measured.",
        ),
        (
            [rate(1, 96, idle=5e-2, collate=1e-3), rate(4, 100, collate=1e-3)],
            16,
            "Collating bounds this loader, with 100% of its work: num_workers=1 delivers 96 "
            "samples per second, 96% of the most that was measured (num_workers=4); its workers "
            "wait most of the time, so the process that takes the batches bounds.",
        ),
        (
            [rate(1, 2500, transfer=1e-3)],
            1,
            "Handing batches over bounds this loader, with 100% of its work: num_workers=1 "
            "delivers 2,500 samples per second, the only number of workers that was measured, and "
            "the only core is used.",
        ),
    ],
)
def test_the_recommendation_follows_from_the_figures(
    rates: list[Rate], cores: int, text: str
) -> None:
    assert recommend(rates, cores) == text


def test_batches_that_start_workers_do_not_count() -> None:
    marks: list[int] = []
    taken: list[int] = []

    class Batches:
        def __iter__(self) -> Any:
            for number in range(5):
                taken.append(number)
                yield number

    counted, seconds = timed(Batches(), 1e-9, warm_up=2, note=lambda: marks.append(len(taken)))
    assert (counted, marks) == (1, [2, 3])
    assert seconds > 0


@pytest.mark.parametrize(
    ("loader", "arguments", "message"),
    [
        (DataLoader(range(4)), {}, "DataLoader"),  # type: ignore[arg-type]
        (StatefulGPULoader(range(4)), {"workers": []}, "number"),
        (StatefulGPULoader(range(4)), {"workers": [-1]}, "0"),
        (StatefulGPULoader(range(4), batch_size=4), {}, "1 batches"),
        (StatefulGPULoader([], batch_size=4), {}, "no batch"),
        (StatefulGPULoader(Endless()), {"workers": [0, 1]}, "--workers 0"),
    ],
)
def test_unmeasurable_loaders_are_refused(loader: Any, arguments: Any, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        bench(loader, **{"workers": [0], "seconds": 0.01, **arguments})
