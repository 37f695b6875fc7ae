"""Images from a source: content of a batch, random draws, and refusals."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, random_split
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.decoders import make_decoder, probe
from tests.conformance import copy_of, refusal, same, uninterrupted
from tests.images import write_photo_folder

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]

RECIPES = [
    T.RandomResizedCrop(48),
    T.RandomHorizontalFlip(),
    T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    T.RandomRotation(20),
    T.RandomGrayscale(),
    T.Normalize(MEAN, STD),
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    write_photo_folder(root, num_classes=3, per_class=8)
    return root


def make_images(root: Path, **changes: Any) -> StatefulGPULoader[Any]:
    arguments: dict[str, Any] = {
        "batch_size": 5,
        "shuffle": True,
        "seed": 42,
        "transform": RECIPES,
        **changes,
    }
    return StatefulGPULoader(FolderSource(root), **arguments)


@pytest.mark.processes
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_large_batches_of_worker_processes_are_correct(photos: Path, method: str) -> None:
    """Memory is filled again, except that of batches that the user keeps."""
    large = {"transform": [T.RandomResizedCrop(224), T.Normalize(MEAN, STD)], "batch_size": 3}
    expected = [copy_of(batch) for batch in make_images(photos, **large)]
    loader = make_images(
        photos,
        **large,
        num_workers=2,
        worker_type="process",
        multiprocessing_context=method,
        persistent_workers=True,
    )
    kept = list(loader)
    places = set()
    for _ in range(3):
        loader.set_epoch(0)
        for batch, right in zip(loader, expected, strict=True):
            assert same(batch, right)
            assert not batch[0].is_shared(), "another process must get a copy"
            places.add(batch[0].data_ptr())
            batch[0].zero_()
    assert same(kept, expected)
    assert len(places) < 2 * len(expected)
    assert not places & {images.data_ptr() for images, _ in kept}


def test_a_users_collate_fn_gets_the_samples_one_by_one(photos: Path) -> None:
    loader = make_images(photos, transform=[T.RandomHorizontalFlip()], collate_fn=list)
    batch = next(iter(loader))
    assert len({image.shape for image, _ in batch}) > 1
    assert {target for _, target in batch} <= {0, 1, 2}


def test_a_batch_is_what_default_collate_would_make(photos: Path) -> None:
    """``[images, targets]``, float32 and int64."""
    source = FolderSource(photos)
    loader = StatefulGPULoader(
        source, batch_size=4, transform=[T.Resize((20, 30)), T.Normalize(MEAN, STD)], num_workers=1
    )
    batch = next(iter(loader))
    assert isinstance(batch, list)
    images, targets = batch
    assert (images.dtype, images.shape) == (torch.float32, (4, 3, 20, 30))
    assert images.is_contiguous()
    assert not images.is_inference()
    assert (targets.dtype, targets.tolist()) == (torch.int64, source.targets[:4].tolist())
    decoder = make_decoder("auto")
    for i in range(4):
        data = source.read(i).data
        image = F.resize(decoder.decode(data, probe(data)), [20, 30], antialias=True)
        wanted = F.normalize(F.to_dtype(image, torch.float32, scale=True), MEAN, STD)
        assert (images[i] - wanted).abs().max() <= 1e-6


def test_images_without_transform_are_delivered_as_decoded(tmp_path: Path) -> None:
    write_photo_folder(tmp_path, num_classes=1, per_class=2)
    (batch,) = make_images(tmp_path, transform=T.Resize((33, 44)), batch_size=2)
    assert (batch[0].dtype, batch[0].shape) == (torch.uint8, (2, 3, 33, 44))
    single = make_images(tmp_path, transform=None, batch_size=None)
    assert all(image.dtype == torch.uint8 for image, _ in single)


def test_delivered_batches_are_never_written_again(photos: Path) -> None:
    loader, again = make_images(photos, num_workers=2), make_images(photos)
    kept = [batch for _ in range(3) for batch in loader]
    assert same(kept, [copy_of(batch) for _ in range(3) for batch in again])


def test_no_thread_is_left_after_a_break(photos: Path) -> None:
    before = set(threading.enumerate())
    for _ in make_images(photos, num_workers=3):
        break
    assert set(threading.enumerate()) <= before


def test_the_decoder_of_the_state_is_taken_where_it_is_available(photos: Path) -> None:
    """decoder="auto" takes a loaded state's family; another explicit decoder raises."""
    pytest.importorskip("torchcodec")
    saved = make_images(photos, decoder="torchvision")
    expected, states = uninterrupted(saved, 1)
    resumed = make_images(photos, num_workers=2)
    by_default = make_decoder("auto").family
    assert by_default != "torchvision"
    assert f'"decoder": "{by_default}"' in resumed.state_dict()["fingerprint"]
    resumed.load_state_dict(states[0, 2])
    assert resumed.state_dict() == states[0, 2]
    assert same([copy_of(batch) for batch in resumed], expected[0][2:])
    explicit = make_images(photos, decoder="torchcodec")
    refused = refusal(explicit, states[0, 2], "decoder")
    assert (refused.saved, refused.present) == ("torchvision", "torchcodec")
    explicit.load_state_dict(states[0, 2], accept={"decoder"})


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_persistent_workers_take_the_decoder_of_a_loaded_state(
    photos: Path, worker_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the load comes during a pass, whose workers return later."""
    pytest.importorskip("torchcodec")
    state = make_images(photos, decoder="torchvision").state_dict()
    loader = make_images(photos, num_workers=1, persistent_workers=True, worker_type=worker_type)
    under_way = iter(loader)
    next(under_way)
    loader.load_state_dict(state)
    del under_way
    following = iter(loader)
    next(following)
    assert '"decoder": "torchvision"' in loader.state_dict()["fingerprint"]
    cluster = following._pipeline._dispatch._cluster
    maker = cluster._adapter._maker if worker_type == "process" else cluster._maker
    assert maker._decoder.family == "torchvision"


def test_splits_and_concatenations_of_a_source_are_sources(photos: Path) -> None:
    """``random_split(source)`` is what most users do first."""
    source = FolderSource(photos)
    train, held_out = random_split(source, [20, 4], generator=torch.Generator().manual_seed(1))
    recipes = [T.Resize((8, 8))]
    whole = [
        image
        for images, _ in StatefulGPULoader(source, batch_size=8, transform=recipes)
        for image in images
    ]
    for split in (train, held_out, ConcatDataset([train, held_out])):
        loader = StatefulGPULoader(split, batch_size=4, transform=recipes, num_workers=1)
        images = [image for images, _ in loader for image in images]
        parts = split.datasets if isinstance(split, ConcatDataset) else [split]
        wanted = [whole[index] for part in parts for index in part.indices]
        assert same(images, wanted)
    states = [
        StatefulGPULoader(split, transform=recipes).state_dict()
        for split in (train, Subset(source, range(20)))
    ]
    refusal(StatefulGPULoader(train, transform=recipes), states[1], "dataset")
    StatefulGPULoader(train, transform=recipes).load_state_dict(states[0])


def test_another_folder_or_transform_is_refused(photos: Path, tmp_path: Path) -> None:
    state = make_images(photos).state_dict()
    write_photo_folder(tmp_path, num_classes=3, per_class=8)
    make_images(tmp_path).load_state_dict(state)
    (tmp_path / "class_00" / "photo_000.jpg").rename(tmp_path / "class_00" / "renamed.jpg")
    refusal(make_images(tmp_path), state, "dataset")
    refused = refusal(make_images(photos, transform=[T.CenterCrop(48)]), state, "transform")
    assert "RandomResizedCrop" in refused.saved


@pytest.mark.parametrize("size", [(1, 1), (20_000, 20), (20, 20_000)])
def test_extreme_sizes_are_right_results(tmp_path: Path, size: tuple[int, int]) -> None:
    from PIL import Image

    (tmp_path / "a").mkdir()
    Image.new("RGB", size, (10, 200, 30)).save(tmp_path / "a" / "odd.png")
    loader = StatefulGPULoader(
        FolderSource(tmp_path), transform=[T.RandomResizedCrop(16), T.RandomHorizontalFlip()]
    )
    ((images, _),) = loader
    assert images[0].flatten(1).unique(dim=1).tolist() == [[10], [200], [30]]


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_is_laid_out_as_the_recipes_say(photos: Path, workers: int) -> None:
    """channels_last with the same pixels, in workers too."""
    for worker_type in ("thread", "process"):
        plain = make_images(photos, num_workers=workers, worker_type=worker_type)
        last = make_images(
            photos,
            transform=[*RECIPES, T.ToMemoryFormat(torch.channels_last)],
            num_workers=workers,
            worker_type=worker_type,
        )
        for (images, _), (wanted, _) in zip(last, plain, strict=True):
            assert images.is_contiguous(memory_format=torch.channels_last)
            assert same(images, wanted)
