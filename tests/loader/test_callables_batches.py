"""CallableSource of whole batches, and of encoded images, which are decoded like a Source's."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_convert

from stateful_gpu_loader import BatchInfo, FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from tests.callables import FileBatches, Files, Loader, NoisyBatches, make
from tests.conformance import (
    copy_of,
    same,
    through_json,
    uninterrupted,
)
from tests.fake_gpu import FakeGpu, fake_gpu
from tests.images import write_photo_folder

__all__ = ["fake_gpu"]
WORKERS: tuple[dict[str, Any], ...] = (
    {},
    {"num_workers": 1, "prefetch_factor": 5},
    {"num_workers": 2, "prefetch_factor": 1},
    {"num_workers": 3, "persistent_workers": True},
)
RECIPES = [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ColorJitter(0.3, 0.3)]


def batches_of(function: Any, source: dict[str, Any] | None = None, **arguments: Any) -> Loader:
    source = {"batch": True, **(source or {})}
    return make(function, source=source, **{"batch_size": None, **arguments})


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    write_photo_folder(root, num_classes=2, per_class=6, seed=4)
    return root


def files_of(root: Path) -> list[Path]:
    return sorted(root.glob("*/*.jpg"))


# Whole batches.


@pytest.mark.processes
@pytest.mark.parametrize("lengths", [(7,), (0, 3, 1)])
def test_batches_end_at_the_same_place_on_all_workers(lengths: tuple[int, ...]) -> None:
    """Batches are delivered as the function returned them, arrays as tensors."""
    wanted = [[(i, epoch) for i in range((lengths * 3)[epoch])] for epoch in range(3)]
    expected = None
    for workers in WORKERS:
        loader = batches_of(NoisyBatches(*lengths), **workers)
        found = [[copy_of(batch) for batch in loader] for _ in range(3)]
        places = [[(int(b["iteration"][0]), int(b["epoch"][0])) for b in each] for each in found]
        assert places == wanted, workers
        expected = found if expected is None else expected
        assert same(found, expected), workers


def test_every_batch_has_other_draws_in_each_epoch() -> None:
    loader = batches_of(NoisyBatches(7))
    noise = torch.cat([batch["noise"] for _ in range(2) for batch in loader])
    assert len(set(noise.tolist())) == 2 * 7 * 3


def test_a_batch_is_converted_as_without_batching() -> None:
    """By default_convert, or by the user's collate_fn on the whole batch."""
    batch = {"a": np.arange(3), "b": (np.float32(2), [torch.zeros(2), b"x"]), "c": "text"}

    def function(info: BatchInfo) -> Any:
        if info.iteration == 2:
            raise StopIteration
        return batch

    assert same([*batches_of(function)], [default_convert(batch)] * 2)
    assert [*batches_of(function, collate_fn=sorted)] == [["a", "b", "c"]] * 2


def test_a_batch_of_batches_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size=None"):
        batches_of(NoisyBatches(5), batch_size=4)


def test_ranks_alternate_whole_batches() -> None:
    """Rank r gets iterations r, r + R, ... of one order."""
    build = partial(batches_of, NoisyBatches(6), {"length": 6})
    expected, states = uninterrupted(build(), 1)
    for delivered in (0, 2):
        for rank in range(2):
            loader = build(num_replicas=2, rank=rank, num_workers=2 * rank)
            loader.load_state_dict(through_json(states[0, delivered]))
            found = [copy_of(batch) for batch in loader]
            assert same(found, expected[0][delivered + rank :: 2]), (delivered, rank)


# Encoded images.


@pytest.mark.processes
@pytest.mark.parametrize(
    ("form", "image"), [("bytes", 0), ("array", 0), ("tensor", -2), ("dict", "jpeg"), ("last", 2)]
)
def test_images_are_those_of_a_source_pixel_by_pixel(
    photos: Path, form: str, image: int | str
) -> None:
    """Decoded and augmented the same way; the target is the other output, or a list of others."""
    folder = StatefulGPULoader(FolderSource(photos), batch_size=5, seed=3, transform=RECIPES)
    wanted = [copy_of(batch) for batch in folder]
    files = files_of(photos)
    for workers in ({}, {"num_workers": 2}):
        arguments = {"batch_size": 5, "transform": RECIPES, **workers}
        loader = make(Files(files, form), source={"image": image}, **arguments)
        found = [copy_of(batch) for batch in loader]
        assert same([images for images, _ in found], [images for images, _ in wanted])
        labels = [labels for _, labels in wanted]
        if form == "dict":
            assert same([batch[1]["label"] for batch in found], labels)
            numbers = torch.cat([batch[1]["number"] for batch in found])
            assert numbers.tolist() == list(range(len(files)))
        elif form == "last":
            assert same([batch[1][0] for batch in found], labels)
            assert found[0][1][1].dtype == torch.float32
        else:
            assert same([batch[1] for batch in found], labels)


def make_images(root: Path, **arguments: Any) -> Loader:
    arguments = {"batch_size": 5, "transform": RECIPES, **arguments}
    return make(Files(files_of(root)), source={"image": 0}, **arguments)


def make_image_batches(root: Path, **arguments: Any) -> Loader:
    arguments = {"transform": RECIPES, **arguments}
    return batches_of(FileBatches(files_of(root)), {"image": 0}, **arguments)


class OneFile(FileBatches):
    """The same image every time."""

    def of(self, number: int) -> Any:
        return super().of(0)


def test_every_image_of_every_batch_has_its_own_augmentation(photos: Path) -> None:
    """Each image's draws are keyed by its place, batch and epoch."""
    function = OneFile(files_of(photos))
    loader = batches_of(function, {"image": 0}, transform=[T.RandomResizedCrop(8, (0.1, 1))])
    images = torch.cat([images for _ in range(2) for images, _ in loader])
    assert len(torch.unique(images.flatten(1), dim=0)) == len(images) == 24


def _darker(image: torch.Tensor) -> torch.Tensor:
    return T.CenterCrop(32).apply(image[:, :32, :32], [0, 0, 0, 0, 0, 0]) * torch.rand(())


@pytest.mark.parametrize("build", [make_images, make_image_batches])
def test_a_callable_as_transform_sees_the_decoded_image(build: Any, photos: Path) -> None:
    images, labels = next(iter(build(photos, transform=_darker)))
    assert images.shape == (5, 3, 32, 32)
    assert images.dtype == torch.float32
    assert labels.shape == (5,)


def test_batches_of_images_are_decoded_as_single_ones(photos: Path) -> None:
    """Without randomness, both ways of reading give the same batch."""
    recipes = [T.Resize(40), T.CenterCrop(32)]
    alone = [copy_of(batch) for batch in make_images(photos, transform=recipes)]
    found = batches_of(FileBatches(files_of(photos)), {"image": 0}, transform=recipes)
    assert same([copy_of(batch) for batch in found], alone)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_device_decodes_them_as_it_does_a_sources(
    photos: Path, fake_gpu: FakeGpu, num_workers: int
) -> None:
    """With device="cuda", workers only read."""
    arguments = {"batch_size": 5, "seed": 3, "transform": RECIPES, "device": "cuda"}
    wanted = [copy_of(b) for b in StatefulGPULoader(FolderSource(photos), **arguments)]
    calls = fake_gpu.decoder.num_calls
    for drop_last in (False, True):
        loader = make_images(photos, device="cuda", num_workers=num_workers, drop_last=drop_last)
        assert same([copy_of(batch) for batch in loader], wanted[: 2 if drop_last else 3])
    assert fake_gpu.decoder.num_calls > calls
    assert next(iter(make_image_batches(photos, device="cuda")))[0].shape == (5, 3, 24, 24)


def test_ranks_share_the_images_of_one_order(photos: Path) -> None:
    """The pixels are those of a single rank."""
    source = {"image": 0, "length": 12}
    build = partial(make, Files(files_of(photos)), source=source, transform=RECIPES)
    wanted = [copy_of(batch) for batch in build(batch_size=6)]
    for rank in range(2):
        part = [copy_of(b) for b in build(batch_size=3, num_replicas=2, rank=rank, num_workers=2)]
        assert same(part, [[outputs[rank::2] for outputs in batch] for batch in wanted])
