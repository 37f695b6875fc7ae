"""preview names samples by their address: an index, a lane and its sample, or a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stateful_gpu_loader import BatchInfo, CallableSource, SampleInfo, StatefulGPULoader, TarShards
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.tools.preview import PreviewedSample, preview
from stateful_gpu_loader.tools.preview_pictures import write_html
from tests.datasets.shards import Numbers
from tests.datasets.tar.tar_files import write_photo_tars
from tests.images import encode, photograph

Loader = StatefulGPULoader[Any]
CROP = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write three shards of 4, 3 and 6 photographs."""
    return write_photo_tars(tmp_path_factory.mktemp("tars"))


def names_of(samples: list[PreviewedSample]) -> list[str]:
    return [sample.place.name for sample in samples]


def assert_as_delivered(loader: Loader, samples: list[PreviewedSample], num_batches: int) -> None:
    """Check that the unchanged loader itself delivers these images."""
    run = iter(loader)
    images = torch.cat([next(run)[0] for _ in range(num_batches)])
    assert torch.equal(torch.stack([sample.image for sample in samples]), images)


@pytest.mark.parametrize("shuffle", [False, True])
def test_samples_of_shards_are_called_by_their_lanes(tars: list[Path], shuffle: bool) -> None:
    loader: Loader = StatefulGPULoader(
        TarShards(tars), batch_size=2, seed=1, shuffle=shuffle, transform=CROP
    )
    before = loader.state_dict()
    samples = preview(loader, 3)
    assert loader.state_dict() == before
    assert names_of(samples) == [f"lane {lane}, sample {i}" for lane in range(3) for i in range(2)]
    assert [(each.place.lane, each.place.lane_sample) for each in samples[2:4]] == [(1, 0), (1, 1)]
    for sample in samples:
        assert sample.place.index is None
        assert sample.place.position is None
        assert sample.original is not None
        assert sample.parameters[0][0] == "RandomResizedCrop"
        assert "position" not in sample.title
    assert_as_delivered(loader, samples, 3)


def test_the_shard_and_the_cursor_find_the_sample_again(tars: list[Path]) -> None:
    dataset = TarShards(tars)
    loader: Loader = StatefulGPULoader(dataset, batch_size=3, transform=[T.Resize((8, 8))])
    place = preview(loader)[2].place
    assert place.stored is not None
    shard, cursor = place.stored.removeprefix("shard '").split("', cursor ")
    sample, _ = next(iter(dataset.read_shard(shard, int(cursor))))
    third = list(dataset.read_shard(shard, 0))[2][0]
    assert torch.equal(sample.data, third.data)


def test_rests_of_several_lanes_make_one_batch(tars: list[Path]) -> None:
    loader: Loader = StatefulGPULoader(TarShards(tars), batch_size=4, transform=CROP)
    samples = preview(loader, 4)
    assert names_of(samples)[8:] == [
        *[f"lane 1, sample {i}" for i in range(3)],
        *[f"lane 2, sample {i}" for i in (4, 5)],
    ]
    assert_as_delivered(loader, samples, 4)


class Pictures(Numbers):
    """Shards of finished grey pictures."""

    def sample(self, shard: int, number: int) -> Any:
        return torch.full((1, 4, 4), 10 * shard + number, dtype=torch.uint8), number


def test_finished_images_of_shards_have_their_lane_too() -> None:
    loader: Loader = StatefulGPULoader(Pictures([4, 3]), batch_size=3)
    samples = preview(loader, 3)
    values = [10 * (sample.place.lane or 0) + (sample.place.lane_sample or 0) for sample in samples]
    assert values == [0, 1, 2, 10, 11, 12, 3]
    assert [int(sample.image[0, 0, 0]) for sample in samples] == values
    assert "Pictures returns finished images" in samples[0].notes[0]


@pytest.mark.processes
@pytest.mark.parametrize("worker_type", ["process", "thread"])
def test_lanes_are_the_same_in_workers(tars: list[Path], worker_type: str) -> None:
    def make(**arguments: Any) -> Loader:
        return StatefulGPULoader(
            TarShards(tars), batch_size=2, seed=1, transform=CROP, shuffle=True, **arguments
        )

    with_workers = make(num_workers=2, worker_type=worker_type)
    run = iter(with_workers)
    next(run)
    inline = make()
    inline.load_state_dict(with_workers.state_dict())
    expected, samples = preview(inline, 2), preview(with_workers, 2)
    assert [sample.place for sample in samples] == [sample.place for sample in expected]
    delivered = [image for _ in range(2) for image in next(run)[0]]
    for sample, image in zip(samples, delivered, strict=True):
        assert torch.equal(sample.image, image)


def photo(number: int) -> Tensor:
    image = photograph("chelsea").crop((number, 0, 60 + 3 * number, 50))
    return encode(image, "PNG")


def encoded_sample(info: SampleInfo) -> tuple[Tensor, int]:
    if info.idx_in_epoch >= 5:
        raise StopIteration
    return photo(info.idx_in_epoch), 100 + info.idx_in_epoch


def encoded_batch(info: BatchInfo) -> tuple[list[Tensor], list[int]]:
    if info.iteration >= 2:
        raise StopIteration
    numbers = range(3 * info.iteration, 3 * info.iteration + 2 + info.iteration)
    return [photo(number) for number in numbers], list(numbers)


def grey_sample(info: SampleInfo) -> tuple[Any, int]:
    return np.full((1, 6, 8), info.idx_in_epoch / 4, np.float32), info.idx_in_epoch


def grey_batch(info: BatchInfo) -> tuple[Any, Any]:
    return np.full((2, 1, 6, 8), info.iteration, np.uint8), np.arange(2)


def test_encoded_samples_of_a_function() -> None:
    source = CallableSource(encoded_sample, image=0)
    loader: Loader = StatefulGPULoader(source, batch_size=3, seed=1, transform=CROP)
    samples = preview(loader, 2)
    assert names_of(samples) == [f"sample {i}" for i in range(5)]
    assert [sample.place.index for sample in samples] == list(range(5))
    assert [sample.label for sample in samples] == [str(100 + i) for i in range(5)]
    assert [sample.original.shape[2] for sample in samples if sample.original is not None] == [
        60 + 2 * i for i in range(5)
    ]
    assert_as_delivered(loader, samples, 2)


def test_encoded_batches_of_a_function() -> None:
    source = CallableSource(encoded_batch, image=0, batch=True)
    loader: Loader = StatefulGPULoader(source, batch_size=None, seed=1, transform=CROP)
    samples = preview(loader, 2)
    wanted = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert names_of(samples) == [f"batch {call}, image {i}" for call, i in wanted]
    assert [sample.place.position for sample in samples] == [call for call, _ in wanted]
    assert_as_delivered(loader, samples, 2)


def test_finished_images_of_a_function() -> None:
    loader: Loader = StatefulGPULoader(CallableSource(grey_sample, length=4), batch_size=2)
    samples = preview(loader, 2)
    assert names_of(samples) == [f"sample {i}" for i in range(4)]
    assert [int(sample.image.max()) for sample in samples] == [0, 64, 128, 191]
    batches = CallableSource(grey_batch, batch=True, length=3)
    samples = preview(StatefulGPULoader(batches, batch_size=None), 2)
    assert names_of(samples)[2:] == ["batch 1, image 0", "batch 1, image 1"]


def test_an_iterable_of_its_own_has_no_places() -> None:
    class Stream(torch.utils.data.IterableDataset[Tensor]):
        def __iter__(self) -> Any:
            yield from torch.zeros(4, 1, 3, 3, dtype=torch.uint8)

    [first, _] = preview(StatefulGPULoader(Stream(), batch_size=2))
    assert first.title == "index unknown, 3x3"


def test_lanes_on_the_page(tars: list[Path], tmp_path: Path) -> None:
    samples = preview(StatefulGPULoader(TarShards(tars), batch_size=2, transform=CROP))
    write_html(tmp_path / "page.html", samples)
    page = (tmp_path / "page.html").read_text()
    assert "lane 0, sample 1, 24x24" in page
    assert "shard &#x27;photos-000.tar&#x27;, cursor " in page
