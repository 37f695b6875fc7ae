"""``from_dataloader``: an equal loader on the fast path, or a refusal that names every obstacle."""

from __future__ import annotations

import logging
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
)
from torchdata.stateful_dataloader import StatefulDataLoader
from torchvision.datasets import (
    CIFAR10,
    MNIST,
    STL10,
    ImageFolder,
    OxfordIIITPet,
    VisionDataset,
)
from torchvision.transforms import v2

from stateful_gpu_loader import ArraySource, FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.errors import UnsupportedLoader
from tests.conformance import assert_exact_resume, same
from tests.images import small_photographs, write_photo_folder

FLOAT = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)]
EVALUATION = v2.Compose([v2.CenterCrop(48), *FLOAT])
TRAINING = v2.Compose([v2.RandomResizedCrop(48), v2.RandomHorizontalFlip(), *FLOAT])
RECIPES = [T.RandomResizedCrop(48), T.RandomHorizontalFlip(), T.Normalize([0.5] * 3, [0.25] * 3)]
N = 12
Convert = Callable[..., StatefulGPULoader[Any]]
convert: Convert = StatefulGPULoader.from_dataloader


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    write_photo_folder(folder, num_classes=3, per_class=4)
    return folder


def cifar(transform: Any = EVALUATION, target_transform: Any = None, images: Any = None) -> Any:
    dataset = CIFAR10.__new__(CIFAR10)  # its constructor would download the images
    dataset.data = small_photographs(N, 32, 32) if images is None else images
    dataset.targets = [i % 10 for i in range(N)]
    dataset.transform, dataset.target_transform = transform, target_transform
    return dataset


def with_targets(targets: Any) -> Any:
    dataset = cifar()
    dataset.targets = targets
    return dataset


def stl(labels: Any = None) -> Any:
    dataset = STL10.__new__(STL10)
    dataset.data = np.ascontiguousarray(small_photographs(N, 96, 96).transpose(0, 3, 1, 2))
    dataset.labels = np.arange(N) if labels is None else labels
    dataset.transform, dataset.target_transform = EVALUATION, None
    return dataset


def tensors() -> TensorDataset:
    images = torch.from_numpy(small_photographs(N)).permute(0, 3, 1, 2).contiguous()
    return TensorDataset(images, torch.arange(N))


DATASETS: dict[str, Callable[[Path], Any]] = {
    "ImageFolder": lambda root: ImageFolder(str(root), EVALUATION),
    "Subset": lambda root: Subset(ImageFolder(str(root), EVALUATION), [7, 1, 4, 1]),
    "ConcatDataset": lambda root: ConcatDataset(
        [ImageFolder(str(root), EVALUATION), Subset(cifar(EVALUATION), range(4))]
    ),
    "CIFAR10": lambda root: cifar(v2.Compose(FLOAT)),
    "STL10": lambda root: stl(),
    "CIFAR10 with an array": lambda root: with_targets(np.arange(N)),
    "CIFAR10 with rows": lambda root: with_targets(np.eye(N, dtype=np.float32)),
    "TensorDataset": lambda root: tensors(),
    "OxfordIIITPet": lambda root: pets(root),
}


@pytest.mark.parametrize("name", DATASETS)
def test_datasets_without_randomness_give_the_same_batches(name: str, root: Path) -> None:
    """A22: pixels of files come from torchvision's decoder; arrays are unchanged."""
    theirs = DataLoader(DATASETS[name](root), batch_size=5)
    ours = convert(theirs, decoder="torchvision")
    assert len(ours) == len(theirs)
    for batch, (images, targets) in zip(ours, theirs, strict=True):
        assert torch.equal(batch[1], targets)
        assert batch[1].dtype is targets.dtype
        assert batch[0].dtype is images.dtype
        is_exact = name.startswith("CIFAR10") or name == "TensorDataset"
        tolerance = 1e-6 if is_exact else 2 / 255 / 0.25
        assert (batch[0].float() - images.float()).abs().max() <= tolerance


def test_a_training_loader_is_the_one_written_by_hand_and_resumes(root: Path) -> None:
    theirs = DataLoader(ImageFolder(str(root), TRAINING), batch_size=5, shuffle=True)

    def make(**changes: Any) -> StatefulGPULoader[Any]:
        return convert(theirs, seed=3, **changes)

    by_hand = StatefulGPULoader(
        FolderSource(root), batch_size=5, shuffle=True, seed=3, transform=RECIPES
    )
    assert same(list(make()), list(by_hand))
    assert_exact_resume(make, other=({"num_workers": 2},))


def test_a_loader_of_this_class_keeps_its_own_arguments(root: Path) -> None:
    given = StatefulGPULoader(
        ImageFolder(str(root), TRAINING),
        batch_size=3,
        shuffle=True,
        seed=8,
        on_bad_sample="replace",
        num_replicas=2,
        rank=1,
    )
    made = convert(given)
    assert (made.seed, made.shuffle, made.on_bad_sample) == (8, True, "replace")
    assert (made.num_replicas, made.rank, made.batch_size) == (2, 1, 3)
    assert [targets.tolist() for _, targets in made] == [targets.tolist() for _, targets in given]


def test_the_source_and_recipes_of_a_fast_loader_are_carried_over(root: Path) -> None:
    given = StatefulGPULoader(FolderSource(root), batch_size=4, seed=1, transform=RECIPES)
    assert same(list(convert(given)), list(given))


def pairs(samples: list[Any]) -> Any:
    return default_collate(samples)


ARGUMENTS: dict[str, dict[str, Any]] = {
    "batches": {"batch_size": 7, "drop_last": True},
    "no batches": {"batch_size": None},
    "collate_fn": {"collate_fn": pairs},
    "workers": {"num_workers": 2, "prefetch_factor": 5, "persistent_workers": True, "timeout": 9},
    "context": {"num_workers": 1, "multiprocessing_context": "spawn"},
    "order of batches": {"in_order": False},
    "pin_memory": {"pin_memory": True},
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_are_carried_over(name: str) -> None:
    theirs = DataLoader(cifar(), **ARGUMENTS[name])
    made = convert(theirs)
    for argument in ARGUMENTS[name]:
        assert getattr(made, argument) == getattr(theirs, argument), argument


def test_snapshots_of_torchdatas_loader_are_carried_over() -> None:
    theirs: Any = StatefulDataLoader(cifar(), 4, snapshot_every_n_steps=3)
    assert convert(theirs).snapshot_every_n_steps == 3


def test_changes_override_carried_over_arguments(root: Path) -> None:
    """A ``dataset`` or ``transform`` argument is not converted, so it cannot be refused."""
    theirs = DataLoader(
        ImageFolder(str(root), v2.Lambda(np.asarray)), 4, shuffle=True, num_workers=2, timeout=5
    )
    made = convert(theirs, transform=RECIPES, num_workers=0, batch_size=3, shuffle=False)
    assert (made.num_workers, made.batch_size, made.timeout) == (0, 3, 0)
    assert [len(targets) for _, targets in made] == [3, 3, 3, 3]
    source = ArraySource(small_photographs(N), range(N))
    assert convert(DataLoader(range(3)), dataset=source, transform=RECIPES).dataset is source


def test_a_replaced_dataset_leaves_its_transform(root: Path) -> None:
    """A dataset whose files are known otherwise keeps its transform."""
    theirs = DataLoader(Own(str(root), TRAINING), 4, shuffle=True)
    source = FolderSource(root)
    made = convert(theirs, dataset=source, seed=1)
    assert repr(made.transform) == repr(T.Compose(RECIPES))
    assert convert(theirs, dataset=source, transform=None).transform is None
    unknown = DataLoader(Own(str(root), v2.Lambda(np.asarray)), 4)
    with pytest.raises(UnsupportedLoader) as caught:
        convert(unknown, dataset=source)
    assert [part.place for part in caught.value.refused] == ["loader.dataset.transform"]


def test_a_replaced_part_or_concatenation_leaves_its_transform(root: Path) -> None:
    """A Subset has no transform itself, and its samples have one."""
    whole, source = ImageFolder(str(root), TRAINING), FolderSource(root)
    part = DataLoader(Subset(Subset(whole, range(6)), [0, 2]))
    for theirs in (part, DataLoader(ConcatDataset([whole, Subset(whole, [1])]))):
        assert repr(convert(theirs, dataset=source).transform) == repr(T.Compose(RECIPES))
    two = ConcatDataset([whole, Subset(ImageFolder(str(root), EVALUATION), [1])])
    with pytest.raises(UnsupportedLoader) as caught:
        convert(DataLoader(two), dataset=source)
    assert [part.place for part in caught.value.refused] == [
        "loader.dataset.datasets[1].dataset.transform"
    ]
    assert convert(DataLoader(tensors()), dataset=source).transform is None


class Joint(VisionDataset):
    """Applies one function to the image and the target."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, transforms=lambda image, target: (image, target))

    def __len__(self) -> int:
        return N


@pytest.mark.parametrize("make", [lambda root: range(3), lambda root: rows(), Joint])
def test_a_replaced_dataset_whose_transform_is_unknown_is_refused(
    make: Callable[[Path], Any], root: Path
) -> None:
    """Its images would be delivered without the transform."""
    theirs, source = DataLoader(make(root)), FolderSource(root)
    with pytest.raises(UnsupportedLoader, match="pass transform=") as caught:
        convert(theirs, dataset=source)
    assert [part.place for part in caught.value.refused] == ["loader.dataset"]
    assert convert(theirs, dataset=source, transform=None).transform is None


def labels_of(loader: Any) -> list[list[int]]:
    return [targets.tolist() for _, targets in loader]


class Described(DataLoader[Any]):
    """Attributes that have the names of arguments, but mean something else."""

    shuffle = True
    transform = "a text"
    seed, rank, num_replicas, device = "a seed", 3, 2, "a device"


def test_attributes_of_a_subclass_are_not_arguments() -> None:
    made = convert(Described(cifar(), 2, sampler=[1, 0, 2]))
    assert labels_of(made) == [[1, 0], [2]]
    assert (made.seed, made.rank, made.device) == (None, None, None)


def test_samples_that_are_not_collated_stay_a_list() -> None:
    theirs = DataLoader(tensors(), 4, collate_fn=default_convert)
    assert convert(theirs).collate_fn is default_convert
    assert same([x for x, _ in next(iter(convert(theirs)))], [x for x, _ in next(iter(theirs))])


@pytest.mark.parametrize("name", DATASETS)
def test_a_class_in_a_single_sample_is_an_int(name: str, root: Path) -> None:
    """torchvision's datasets give one too; a TensorDataset and an array give 0-d tensors."""
    theirs = DataLoader(DATASETS[name](root), batch_size=None)
    (_, expected), (_, found) = next(iter(theirs)), next(iter(convert(theirs)))
    assert same(torch.as_tensor(found), torch.as_tensor(expected))
    is_row = name == "CIFAR10 with rows"
    assert type(found) is (torch.Tensor if is_row else int)
    if name not in ("CIFAR10 with an array", "TensorDataset"):
        assert type(expected) is type(found)


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Repeating(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([])


class Redirected(DataLoader[Any]):
    def _get_iterator(self) -> Any:
        return iter([])


class Reordered(DataLoader[Any]):
    @property
    def _index_sampler(self) -> Any:
        return [[2, 1]]


class Own(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)


class OwnLength(CIFAR10):
    def __len__(self) -> int:
        return 2


class OwnBatches(ImageFolder):
    def __getitems__(self, indices: list[int]) -> Any:
        return [self[0] for _ in indices]


def shortened() -> Any:
    dataset = cifar()
    dataset.__class__ = OwnLength
    return dataset


def mnist() -> Any:
    dataset = MNIST.__new__(MNIST)
    dataset.data, dataset.targets = torch.zeros(N, 28, 28, dtype=torch.uint8), torch.zeros(N)
    dataset.transform, dataset.target_transform = EVALUATION, None
    return dataset


def labelled(root: Path, kind: Callable[[int], Any]) -> Any:
    """Return a folder whose classes are of another type."""
    dataset: Any = ImageFolder(str(root), EVALUATION)
    dataset.samples = [(path, kind(target)) for path, target in dataset.samples]
    return dataset


def hooked() -> v2.CenterCrop:
    crop = v2.CenterCrop(8)
    crop.register_forward_hook(lambda module, given, made: made.rotate(90))
    return crop


def pets(root: Path, transform: Any = EVALUATION) -> Any:
    """Return pets with this transform, which the attribute ``transform`` then replaces."""
    dataset = OxfordIIITPet.__new__(OxfordIIITPet)
    VisionDataset.__init__(dataset, root, transform=transform)
    files = ImageFolder(str(root)).samples
    dataset._images, dataset._labels = ([*each] for each in zip(*files, strict=True))
    dataset._bin_labels, dataset._target_types = dataset._labels, ["category"]
    dataset.transform = EVALUATION
    return dataset


def scripted() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Identity())


def rows() -> Any:
    return datasets.Dataset.from_dict({"image": [b"1"], "label": [1]}).with_transform(len)


REFUSED: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "no loader": (lambda root: nn.Identity(), ["loader"]),
    "another pass": (lambda root: Repeating(cifar()), ["loader"]),
    "another iterator": (lambda root: Redirected(cifar()), ["loader"]),
    "another order": (lambda root: Reordered(cifar()), ["loader"]),
    "an iterable": (lambda root: DataLoader(Numbers()), ["loader.dataset"]),
    "numbers": (lambda root: DataLoader(range(3)), ["loader.dataset"]),
    "grey images": (lambda root: DataLoader(mnist()), ["loader.dataset"]),
    "rows": (lambda root: DataLoader(rows()), ["loader.dataset"]),
    "float images": (
        lambda root: DataLoader(TensorDataset(torch.zeros(3, 3, 8, 8), torch.arange(3))),
        ["loader.dataset"],
    ),
    "images of three columns": (
        lambda root: DataLoader(
            TensorDataset(torch.zeros(2, 3, 8, 3, dtype=torch.uint8), torch.arange(2))
        ),
        ["loader.dataset"],
    ),
    "too few targets": (lambda root: DataLoader(with_targets([1, 2])), ["loader.dataset"]),
    "a replaced transform": (lambda root: DataLoader(pets(root, TRAINING)), ["loader.dataset"]),
    "a scripted transform": (
        lambda root: DataLoader(cifar(scripted())),
        ["loader.dataset.transform"],
    ),
    "a subclass": (lambda root: DataLoader(Own(str(root), EVALUATION)), ["loader.dataset"]),
    "a subclass with a length": (lambda root: DataLoader(shortened()), ["loader.dataset"]),
    "a subclass that reads batches": (
        lambda root: DataLoader(OwnBatches(str(root), EVALUATION)),
        ["loader.dataset"],
    ),
    "targets of one dtype": (
        lambda root: DataLoader(with_targets(np.arange(N, dtype=np.float32))),
        ["loader.dataset"],
    ),
    "pairs as targets": (
        lambda root: DataLoader(with_targets([(i, i) for i in range(N)])),
        ["loader.dataset"],
    ),
    "targets of two types": (
        lambda root: DataLoader(with_targets([0.5, *range(1, N)])),
        ["loader.dataset"],
    ),
    "tensors beside images": (
        lambda root: DataLoader(ConcatDataset([cifar(), tensors()])),
        ["loader.dataset.datasets[1]"],
    ),
    "a function of targets": (
        lambda root: DataLoader(ImageFolder(str(root), EVALUATION, str)),
        ["loader.dataset"],
    ),
    "small numbers as classes": (
        lambda root: DataLoader(labelled(root, np.uint8)),
        ["loader.dataset"],
    ),
    "tensors as classes": (
        lambda root: DataLoader(labelled(root, lambda i: torch.tensor(i, dtype=torch.int32))),
        ["loader.dataset"],
    ),
    "yes and no as classes": (
        lambda root: DataLoader(Subset(labelled(root, bool), [1])),
        ["loader.dataset.dataset"],
    ),
    "targets that become ints": (lambda root: DataLoader(stl([0.5] * N)), ["loader.dataset"]),
    "grey images in three channels": (
        lambda root: DataLoader(cifar(images=small_photographs(N)[..., 0])),
        ["loader.dataset"],
    ),
    "a hook": (
        lambda root: DataLoader(cifar(v2.Compose([hooked(), *FLOAT]))),
        ["loader.dataset.transform.transforms[0]"],
    ),
    "a transform of samples of tensors": (
        lambda root: StatefulGPULoader(tensors(), transform=len),
        ["loader.transform"],
    ),
    "another function of targets": (
        lambda root: DataLoader(cifar(target_transform=str)),
        ["loader.dataset"],
    ),
    "no transform": (lambda root: DataLoader(cifar(None)), ["loader.dataset.transform"]),
    "Pillow images": (
        lambda root: DataLoader(cifar(v2.CenterCrop(8)), collate_fn=list),
        ["loader.dataset.transform"],
    ),
    "two parts of a transform": (
        lambda root: DataLoader(
            Subset(cifar(v2.Compose([v2.FiveCrop(8), v2.ToImage(), v2.Lambda(len)])), [1])
        ),
        [f"loader.dataset.dataset.transform.transforms[{i}]" for i in (0, 2)],
    ),
    "two transforms": (
        lambda root: DataLoader(ConcatDataset([cifar(EVALUATION), cifar(v2.Compose(FLOAT))])),
        ["loader.dataset.datasets[1].transform"],
    ),
    "a transform of samples": (
        lambda root: StatefulGPULoader(cifar(), transform=len),
        ["loader.transform"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_parts_without_an_equivalent_are_refused_with_their_place(name: str, root: Path) -> None:
    make, places = REFUSED[name]
    with pytest.raises(UnsupportedLoader) as caught:
        convert(make(root))
    assert [part.place for part in caught.value.refused] == places
    assert all(part.reason and part.place in str(caught.value) for part in caught.value.refused)


def test_a_mask_is_no_list_of_indices(root: Path) -> None:
    """Its values would be the indices 0 and 1."""
    for indices in (np.arange(N) < 3, [True, False], [1.0, 2.0]):
        with pytest.raises(TypeError, match="flatnonzero"):
            convert(DataLoader(Subset(ImageFolder(str(root), EVALUATION), indices)))  # type: ignore[arg-type]


def test_a_refusal_crosses_processes() -> None:
    with pytest.raises(UnsupportedLoader) as caught:
        convert(DataLoader([1, 2]))
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (copied.refused, str(copied)) == (caught.value.refused, str(caught.value))


def test_one_line_of_the_log_names_what_was_converted(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "stateful_gpu_loader"):
        convert(DataLoader(ImageFolder(str(root), TRAINING)))
    (line,) = [each.getMessage() for each in caplog.records if "from_dataloader" in each.message]
    for part in ("ImageFolder", "FolderSource", "RandomResizedCrop"):
        assert part in line
