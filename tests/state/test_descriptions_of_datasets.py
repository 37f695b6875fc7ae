"""Datasets as text: common datasets are recognised without reading a sample."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset
from torchvision import datasets as torchvision_datasets
from torchvision.transforms import v2

from stateful_gpu_loader import MixedDataset, StatefulGPULoader, StateMismatch
from stateful_gpu_loader.state import contents
from stateful_gpu_loader.state.descriptions import (
    MAX_ENTRIES,
    MAX_ROWS,
    MAX_TOTAL,
    MIN_ENTRIES,
    describe_dataset,
    describe_transforms_of,
)
from tests.conformance import differing
from tests.map_datasets import Indices, mix_batch


class Files(Dataset[Any]):
    """A user's own dataset, as most are written."""

    def __init__(self, samples: Any, transform: Any = None) -> None:
        self.samples = samples
        self.transform = transform
        self.file: Any = None

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


class Wrapped(Dataset[Any]):
    """A user's wrapper of another dataset."""

    def __init__(self, dataset: Any, transform: Any = None) -> None:
        self.dataset = dataset
        self.transform = transform


class CountingEntries(list[Any]):
    """A list that counts its reads, and must not be iterated."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        return super().__getitem__(index)

    def __iter__(self) -> Any:
        raise AssertionError("a long list is never gone through as a whole")


def text(dataset: Any) -> str:
    return describe_dataset(dataset).text


def write_names(root: Path) -> None:
    """Return paths with the names of photographs, which are never read."""
    for name in ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def image_folder(root: Path, **arguments: Any) -> Any:
    return torchvision_datasets.ImageFolder(str(root), **arguments)


def test_an_image_folder_is_its_files_wherever_it_lies(tmp_path: Path) -> None:
    """Renamed files are another dataset. The same files in another folder are not."""
    here, there = tmp_path / "here", tmp_path / "other" / "there"
    for root in (here, there):
        write_names(root)
    before = text(image_folder(here))
    assert before == text(image_folder(there)) == text(image_folder(Path(f"{there}/")))
    assert describe_dataset(image_folder(here)).unknown == ()
    photo = sorted(there.glob("*/*"))[0]
    photo.rename(photo.with_stem("renamed"))
    assert text(image_folder(there)) != before
    photo.with_stem("renamed").rename(sorted(there.glob("*/"))[1] / photo.name)
    assert text(image_folder(there)) != before, "in another class"


def cifar(data: Any, targets: list[int]) -> Any:
    """Return CIFAR10 in its state after its files were read."""
    dataset: Any = torchvision_datasets.CIFAR10.__new__(torchvision_datasets.CIFAR10)
    torchvision_datasets.VisionDataset.__init__(dataset, "data", transform=None)
    dataset.data, dataset.targets, dataset.train = data, targets, True
    return dataset


DATA = np.arange(4 * 8 * 8 * 3, dtype=np.uint8).reshape(4, 8, 8, 3)
TENSORS = (torch.arange(12.0).reshape(6, 2), torch.arange(6))
DIFFERENT: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "CIFAR's data": (lambda: cifar(DATA, [0, 1, 2, 3]), lambda: cifar(DATA + 1, [0, 1, 2, 3])),
    "CIFAR's targets": (lambda: cifar(DATA, [0, 1, 2, 3]), lambda: cifar(DATA, [0, 1, 2, 2])),
    "FakeData's size": (
        lambda: torchvision_datasets.FakeData(8),
        lambda: torchvision_datasets.FakeData(8, random_offset=1),
    ),
    "values": (lambda: TensorDataset(*TENSORS), lambda: TensorDataset(TENSORS[0] + 1, TENSORS[1])),
    "dtype": (lambda: TensorDataset(TENSORS[1]), lambda: TensorDataset(TENSORS[1].int())),
    "shape": (
        lambda: TensorDataset(torch.zeros(6, 4)),
        lambda: TensorDataset(torch.zeros(6, 2, 2)),
    ),
    "indices": (lambda: Subset(range(9), [1, 2]), lambda: Subset(range(9), [2, 1])),
    "what is divided": (
        lambda: Subset(TensorDataset(TENSORS[1]), [1, 2]),
        lambda: Subset(TensorDataset(TENSORS[1] + 1), [1, 2]),
    ),
    "order of parts": (
        lambda: ConcatDataset([range(2), range(3)]),
        lambda: ConcatDataset([range(3), range(2)]),
    ),
    "what is stacked": (
        lambda: StackDataset(image=TENSORS[0], label=TENSORS[1]),
        lambda: StackDataset(image=TENSORS[0], label=TENSORS[1] + 1),
    ),
    "lists": (lambda: ["a", "b"], lambda: ["a", "c"]),
    "ranges": (lambda: range(5), lambda: range(1, 6)),
    "a user's files": (lambda: Files([("a", 0)]), lambda: Files([("b", 0)])),
    "what a user wraps": (lambda: Wrapped(Files(["a"])), lambda: Wrapped(Files(["b"]))),
    "a mixture's part": (
        lambda: MixedDataset([TensorDataset(TENSORS[1])]),
        lambda: MixedDataset([TensorDataset(TENSORS[1] + 1)]),
    ),
}


def test_another_content_is_another_text() -> None:
    """All of equal length."""
    for one, other in DIFFERENT.values():
        assert text(one()) == text(one())
        assert text(pickle.loads(pickle.dumps(one()))) == text(one())
        assert text(one()) != text(other())


def test_a_users_files_are_known_below_the_folder_that_they_share() -> None:
    """A dataset without ``root`` that has moved is the same one."""

    def pairs(folder: str) -> Files:
        return Files([(f"{folder}/images/{i}.png", f"{folder}/masks/{i}.png") for i in range(3)])

    assert text(pairs("/data")) == text(pairs("/mnt/disk/data"))
    assert text(Files(["/data/train/1.png"])) == text(Files(["/mnt/1.png"]))


def test_the_class_of_a_user_leaves_the_dataset_unverified() -> None:
    """Its use of its attributes is unknown, and so are its other attributes."""
    assert describe_dataset(Files(["a"])).unknown == (
        "what a tests.state.test_descriptions_of_datasets.Files does",
    )
    for holds in (Subset(Files(["a"]), [0]), MixedDataset([Files(["a"])]), [Files(["a"])]):
        assert len(describe_dataset(holds).unknown) == 1


def test_a_users_class_may_be_renamed_or_fixed() -> None:
    """It is known by its content, or not at all if no attribute has a usual name."""

    class Fixed(Files):
        pass

    assert text(Fixed(["a"])) == text(Files(["a"])) == "(samples=['a'])"
    assert text(Indices(3)) == "?"
    assert (
        text(Subset(Indices(3), [1])) == "torch.utils.data.dataset.Subset(dataset=?, indices=[1])"
    )


def test_handles_opened_by_reading_are_not_part_of_the_dataset() -> None:
    """For example an h5py file opened at the first sample: a new instance of the same loader has
    not opened it yet.
    """

    class Handle:
        pass

    dataset: Any = Files(["a"])
    before = text(dataset)
    dataset.dataset = dataset.data = Handle()
    assert text(dataset) == before


def test_the_text_of_a_long_list_costs_no_more_than_that_of_a_short_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A few of a million files are read: the first, the last, and others between."""
    monkeypatch.setattr(contents, "MAX_COST", 1000)
    paths = [(f"/data/{i // 100}/{i}.jpg", i // 100) for i in range(130_000)]
    samples = CountingEntries(paths)
    before = text(Files(samples))
    assert samples.reads <= 2 * MAX_ENTRIES
    for index in (0, -1):
        changed = CountingEntries(paths)
        changed[index] = ("/data/renamed.jpg", 0)
        assert text(Files(changed)) != before
    folder = [(path.replace("/650/", "/other/"), label) for path, label in paths]
    assert text(Files(CountingEntries(folder))) != before, "a folder of one class in 1,300"


def test_the_text_of_many_parts_costs_no_more_than_that_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first ones are read more closely than the others."""
    monkeypatch.setattr(contents, "MAX_COST", 1000)
    parts = [CountingEntries(range(1000)) for _ in range(500)]
    before = text(ConcatDataset(parts))
    assert sum(part.reads for part in parts) <= 2 * (MAX_TOTAL + MAX_ROWS * MIN_ENTRIES)
    parts[-1][-1] = 0
    assert text(ConcatDataset(parts)) != before


def test_a_large_array_is_sampled_over_its_whole_length() -> None:
    """Also if single rows are far larger than the sampled bytes."""
    data = torch.zeros(10_000, 16, 16, dtype=torch.uint8)
    before = text(TensorDataset(data))
    for row in (slice(0, 1), slice(-1, None), slice(5000, 5000 + 2 * 10_000 // MAX_ROWS)):
        changed = data.clone()
        changed[row] = 1
        assert text(TensorDataset(changed)) != before
    assert text(TensorDataset(data.transpose(1, 2))) == before, "however it lies in memory"


def test_tensors_of_every_kind_are_known_and_unreadable_values_unverified() -> None:
    for tensor in (
        torch.tensor(3.0),
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.zeros(0, 3),
        torch.ones(3, requires_grad=True),
        np.ones(()),
        np.array(["a", "b"]),
    ):
        assert describe_dataset([tensor]).unknown == ()
    for value in (torch.ones(3).to_sparse(), torch.ones(3, device="meta"), np.array([object()])):
        assert len(describe_dataset([value]).unknown) == 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_described_and_distinguished(layout: torch.layout) -> None:
    def nested(value: float) -> torch.Tensor:
        parts = [torch.full((n,), value) for n in (2, 3)]
        return torch.nested.nested_tensor(parts, layout=layout)

    assert describe_dataset([nested(1)]).unknown == ()
    assert text([nested(1)]) == text([nested(1)]) != text([nested(2)])


def test_transforms_inside_a_dataset_are_described_apart(tmp_path: Path) -> None:
    """So another transform can be accepted in the middle of an epoch, but not another dataset."""
    write_names(tmp_path)
    flip, crop = v2.RandomHorizontalFlip(0.25), v2.RandomCrop(8)
    dataset = image_folder(tmp_path, transform=flip, target_transform=float)
    assert text(dataset) == text(image_folder(tmp_path, transform=crop))
    flipped = "torchvision.transforms.v2.RandomHorizontalFlip(p=0.25)"
    assert describe_transforms_of(dataset).text == (
        f"transform={flipped}, target_transform=builtins.float"
    )
    both: Any = image_folder(tmp_path)
    both.transforms = crop
    inside = {
        f"transforms={describe_transforms_of(both).text[11:]}": both,
        f"dataset.transform={flipped}": Subset(Files([1], flip), [0]),
        f"datasets[1].transform={flipped}": ConcatDataset([Indices(2), Files([1], flip)]),
        f"datasets['x'].transform={flipped}": StackDataset(x=Files([1], flip)),
        f"transform=tests.map_datasets.mix_batch, dataset.transform={flipped}": Wrapped(
            Files([1], flip), mix_batch
        ),
        "none": Files([1]),
    }
    for wanted, holding in inside.items():
        assert describe_transforms_of(holding).text == wanted
    assert describe_transforms_of(both).text != "none"
    assert len(describe_transforms_of(Files([1], mix_batch)).unknown) == 1


def test_the_digest_of_a_hugging_face_dataset_counts_in_no_other_class() -> None:
    class Other(Indices):
        _fingerprint = "of another package"

    assert "another package" not in text(Other(3))


@pytest.mark.filterwarnings("ignore")
def test_real_hugging_face_datasets_are_known() -> None:
    """With the real package. Another seed of its shuffle counts, too."""
    import datasets

    dataset = datasets.Dataset.from_dict({"x": list(range(100))})
    again = datasets.Dataset.from_dict({"x": list(range(100))})
    assert text(dataset) == text(again)
    assert text(dataset.shuffle(seed=1)) == text(again.shuffle(seed=1))
    assert text(dataset.shuffle(seed=1)) != text(dataset.shuffle(seed=2))
    assert text(dataset.with_format("torch")) != text(dataset)
    assert text(Subset(dataset, [1])) != text(Subset(dataset.select(range(50)), [1]))
    assert describe_dataset(dataset.shuffle(seed=1)).unknown == ()
    noisy = [
        data.shuffle(seed=1).with_transform(partial(_with_noise, np.random.default_rng()))
        for data in (dataset, again)
    ]
    assert text(noisy[0]) == text(noisy[1]), "its digest holds the state of the generator"
    other = partial(_with_noise, np.random.default_rng())
    assert text(noisy[0]) != text(dataset.shuffle(seed=2).with_transform(other))
    assert describe_dataset(noisy[0]).unknown != ()
    state = StatefulGPULoader(dataset.shuffle(seed=1), 4, strict=True).state_dict()
    StatefulGPULoader(again.shuffle(seed=1), 4, strict=True).load_state_dict(state)
    with pytest.raises(StateMismatch, check=differing("dataset")):
        StatefulGPULoader(again.shuffle(seed=2), 4).load_state_dict(state)


def _with_noise(generator: np.random.Generator, rows: dict[str, Any]) -> dict[str, Any]:
    return {"x": [value + generator.random() for value in rows["x"]]}


def test_files_are_known_by_their_paths_below_the_root() -> None:
    """And not below the deepest common folder, which is the class here."""
    dataset = Files(["/data/photos/cat/1.jpg", "/data/photos/cat/2.jpg"])
    dataset.root = "/data/photos"
    assert "'cat/1.jpg', 'cat/2.jpg'" in describe_dataset(dataset).text
