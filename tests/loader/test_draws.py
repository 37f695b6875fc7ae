"""loader.draws(): the random numbers of the last batch, checked against the batch's pixels."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms.v2 import functional as F

from stateful_gpu_loader import CallableSource, FolderSource, LoaderError, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.datasets import Source
from stateful_gpu_loader.records import EncodedSample
from stateful_gpu_loader.transforms.recipe import FloatArray
from tests.callables import FileBatches, Files
from tests.conformance import loaded
from tests.damaged import write_photos
from tests.datasets.shards import PhotoShards
from tests.fake_gpu import FakeGpu, fake_gpu
from tests.images import write_photo_folder
from tests.loader.passes import interrupted
from tests.user_objects import StatefulDataset

__all__ = ["fake_gpu"]
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and encoding")
Loader = StatefulGPULoader[Any]
Draws = list[dict[str, Any]]
DataOf = Callable[[int], torch.Tensor]
SIDE = 32
RECIPES = [T.RandomCrop(SIDE), T.RandomRotation(30), T.RandomHorizontalFlip()]
EXECUTIONS: list[dict[str, Any]] = [
    {},
    {"num_workers": 2},
    {"num_workers": 2, "worker_type": "process"},
]
executions = pytest.mark.parametrize("execution", EXECUTIONS, ids=str)


class Numbered(Source):
    """A folder whose targets are the indices. It counts its reads."""

    def __init__(self, root: Path) -> None:
        self.folder = FolderSource(root)
        self.num_reads = 0

    def __len__(self) -> int:
        return len(self.folder)

    def read(self, index: int) -> EncodedSample:
        self.num_reads += 1
        return dataclasses.replace(self.folder.read(index), target=index)

    def fingerprint(self) -> str:
        return "numbered"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    write_photo_folder(root, num_classes=2, per_class=7, seed=1)
    return root


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("damaged"))[1]


def make(dataset: Any, **arguments: Any) -> Loader:
    given = {"batch_size": 4, "shuffle": True, "seed": 3, "transform": RECIPES} | arguments
    return StatefulGPULoader(dataset, **given)


def assert_these_made(draws: list[dict[str, Any]], batch: Any, data_of: DataOf) -> None:
    """Check that torchvision makes the batch's pixels from the files and the reported numbers."""
    images, targets = batch
    crop, rotation, flip = draws
    names = [mapping["recipe"] for mapping in draws]
    assert names == ["RandomCrop", "RandomRotation", "RandomHorizontalFlip"]
    assert {len(crop["top"]), len(rotation["angle"]), len(flip["acts"])} == {len(images)}
    for i, target in enumerate(targets.tolist()):
        image = decode_image(data_of(target), ImageReadMode.RGB)
        image = F.crop_image(image, int(crop["top"][i]), int(crop["left"][i]), SIDE, SIDE)
        image = F.rotate_image(image, float(rotation["angle"][i]))
        image = F.horizontal_flip_image(image) if flip["acts"][i] else image
        assert torch.equal(images[i], image), (i, target)


def assert_draws_of_every_batch(loader: Loader, data_of: DataOf, epochs: int = 2) -> list[Draws]:
    found = []
    for _ in range(epochs):
        for batch in loader:
            found.append(loader.draws())
            assert_these_made(found[-1], batch, data_of)
    return found


def data_of(root: Path) -> DataOf:
    folder = FolderSource(root)
    return lambda index: folder.read(index).data


@pytest.mark.processes
@executions
def test_the_numbers_make_the_pixels(photos: Path, execution: dict[str, Any]) -> None:
    """For every batch, including the short last one and batches of other epochs."""
    loader = make(Numbered(photos), **execution)
    found = assert_draws_of_every_batch(loader, data_of(photos))
    assert len(found) == 8
    angles = np.concatenate([draws[1]["angle"] for draws in found])
    assert len(set(angles.tolist())) == 28
    assert (np.abs(angles) <= 30).all()


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_replicas": 2, "rank": 1},
        {"shuffle": None, "sampler": [5, 1, 13, 1, 0]},
        {"shuffle": None, "batch_size": 1, "batch_sampler": [[3, 9], [12]]},
        {"drop_last": True, "batch_size": 5},
    ],
    ids=str,
)
def test_draws_are_available_for_any_order(photos: Path, arguments: dict[str, Any]) -> None:
    """Ranks, users' samplers and users' batch samplers."""
    assert_draws_of_every_batch(make(Numbered(photos), **arguments), data_of(photos))


def test_a_resumed_loader_has_the_draws_of_the_uninterrupted_one(photos: Path) -> None:
    """Before it has delivered a batch itself, it refuses."""
    loader = make(Numbered(photos))
    batches = iter(loader)
    with pytest.raises(LoaderError, match="has delivered none"):
        loader.draws()
    next(batches)
    state = loader.state_dict()
    next(batches)
    expected = loader.draws()
    resumed = loaded(make(Numbered(photos), num_workers=2), state)
    with pytest.raises(LoaderError, match="has delivered none"):
        resumed.draws()
    next(iter(resumed))
    assert_same_draws(resumed.draws(), expected)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("execution", "mode"),
    [(EXECUTIONS[0], "replace"), (EXECUTIONS[1], "drop"), (EXECUTIONS[2], "replace")],
)
def test_draws_skip_bad_samples_as_the_batch_does(
    damaged: Path, execution: dict[str, Any], mode: str
) -> None:
    """A replacement has its own size, and the draws of the position that it fills."""
    loader = make(Numbered(damaged), on_bad_sample=mode, **execution)
    assert_draws_of_every_batch(loader, data_of(damaged))
    assert loader.bad_samples.total > 5


@pytest.mark.parametrize("mode", ["replace", "drop"])
def test_batches_finished_on_a_device_have_draws(
    damaged: Path, mode: str, fake_gpu: FakeGpu
) -> None:
    """The CPU draws the numbers; the device finds the bad samples, and records the same ones."""
    on_cpu = make(Numbered(damaged), on_bad_sample=mode)
    loader = make(Numbered(damaged), on_bad_sample=mode, device="cuda", num_workers=2)
    for (images, targets), (_, expected) in zip(loader, on_cpu, strict=True):
        assert targets.tolist() == expected.tolist()
        assert_same_draws(loader.draws(), on_cpu.draws())
        assert len(loader.draws()[1]["angle"]) == len(images)
    found, wanted = (each.bad_samples.samples for each in (loader, on_cpu))
    assert {(bad.index, bad.position) for bad in found} == {
        (bad.index, bad.position) for bad in wanted
    }


def assert_same_draws(ours: Draws, theirs: Draws) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.processes
@pytest.mark.parametrize(("batch", "num_workers"), [(False, 2), (True, 0)])
def test_a_function_is_called_again(photos: Path, batch: bool, num_workers: int) -> None:
    """It has private generators; the caller's generators do not change."""
    paths = sorted(photos.rglob("*.jpg"))
    source = CallableSource(Batches(paths) if batch else Single(paths), image=0, batch=batch)
    size = None if batch else 4
    loader = make(source, shuffle=None, batch_size=size, num_workers=num_workers)
    batches = iter(loader)
    next(batches)
    before = random.getstate(), torch.get_rng_state()
    loader.draws()
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    del batches
    assert_draws_of_every_batch(loader, lambda number: read(paths[number]))


class Single(Files):
    """The target is the file's number."""

    def of(self, number: int) -> Any:
        return super().of(number)[0], number


class Batches(FileBatches):
    def of(self, number: int) -> Any:
        return Files.of(self, number)[0], number


def read(path: Path) -> torch.Tensor:
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("shuffle", "mode", "num_workers"),
    [(True, "drop", 2), (True, "raise", 0), (False, "drop", 0), (False, "raise", 2)],
)
def test_a_lane_is_read_again(shuffle: bool, mode: str, num_workers: int) -> None:
    """In the middle of a window, and in the joined rests."""
    bad = {"broken": frozenset({101, 103, 201, 302}), "damaged": frozenset({204})}
    shards = PhotoShards((3, 6, 7, 4), **(bad if mode == "drop" else {}))  # type: ignore[arg-type]
    arguments = {"shuffle": shuffle, "on_bad_sample": mode, "num_workers": num_workers}
    loader = make(shards, batch_size=3, **arguments)

    def data(target: int) -> torch.Tensor:
        return shards.files[target // 100][target % 100]

    found = assert_draws_of_every_batch(loader, data)
    assert len(found) > 6
    state, _ = interrupted(loader)
    resumed = loaded(make(shards, batch_size=3, **arguments), state)
    assert_draws_of_every_batch(resumed, data, epochs=1)


def test_draws_read_headers_when_called(photos: Path) -> None:
    """Each call reads only the headers of the images again."""
    source = Numbered(photos)
    loader = make(source)
    next(iter(loader))
    assert source.num_reads == 4
    loader.draws()
    assert source.num_reads == 8


def test_a_file_that_cannot_be_read_again_is_an_error(photos: Path, tmp_path: Path) -> None:
    paths = write_photo_folder(tmp_path, num_classes=1, per_class=4)
    for mode in ("raise", "replace"):
        loader = make(FolderSource(tmp_path), on_bad_sample=mode)
        next(iter(loader))
        content = paths[2].read_bytes()
        paths[2].write_bytes(b"no photograph")
        with pytest.raises(LoaderError, match="photo_002"):
            loader.draws()
        paths[2].write_bytes(content)


class Unprinted:
    """An index whose repr() is ambiguous."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"an index from {self.number // 2 * 2}"


class ByObject(Numbered):
    def read(self, index: Any) -> EncodedSample:
        return super().read(index.number)


def test_indistinguishable_bad_samples_are_an_error(damaged: Path) -> None:
    """A sampler's indices are identified by repr(), so a sound one could be dropped as well."""
    sampler = [Unprinted(number) for number in (2, 0, 3, 1)]
    loader = make(ByObject(damaged), shuffle=None, sampler=sampler, on_bad_sample="drop")
    assert len(next(iter(loader))[0]) == 3
    with pytest.raises(LoaderError, match="differs when it is read again"):
        loader.draws()


def own_code(image: torch.Tensor) -> torch.Tensor:
    return image[:, :8, :8]


class StatefulSource(Numbered):
    def state_dict(self) -> dict[str, Any]:
        return {"reads": self.num_reads}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_reads = state["reads"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"transform": own_code}, "callable of yours"),
        ({"transform": [T.RandomCrop(SIDE), own_code]}, "callable of yours"),
        ({"dataset": lambda root: list(range(8))}, "not a Source of encoded images"),
        ({"dataset": lambda root: StatefulDataset(8)}, "not a Source of encoded images"),
        ({"dataset": StatefulSource, "transform": RECIPES}, "has a state"),
    ],
    ids=["a callable", "a recipe and a callable", "a list", "a dataset with state", "a state"],
)
def test_draws_that_cannot_be_repeated_are_refused(
    photos: Path, arguments: dict[str, Any], why: str
) -> None:
    given = {"dataset": Numbered, "transform": None, "shuffle": None, **arguments}
    loader = make(given.pop("dataset")(photos), **given)
    next(iter(loader))
    with pytest.raises(LoaderError, match=why):
        loader.draws()


class Shifted(T.RandomRotation):
    """Draws other numbers than its base class, and does not name them."""

    def draw(self, uniforms: FloatArray, sizes: Any) -> T.Draw:
        return T.Draw(uniforms - 0.5, sizes)


def test_a_recipe_without_names_has_its_numbers_together(photos: Path) -> None:
    """It does not inherit the names of numbers that it does not draw."""
    recipes = [T.RandomCrop(SIDE), Shifted(30), T.Normalize([0.5], [0.5])]
    loader = make(Numbered(photos), transform=recipes)
    next(iter(loader))
    _, shifted, normalize = loader.draws()
    assert shifted.keys() == {"recipe", "numbers"}
    assert shifted["numbers"].shape == (4, 1)
    assert normalize == {"recipe": "Normalize"}
