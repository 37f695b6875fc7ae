"""timm's ImageDataset as a folder source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from timm.data import ImageDataset
from timm.data.readers.reader_image_folder import ReaderImageFolder
from timm.data.readers.reader_image_in_tar import ReaderImageInTar
from torch.utils.data import DataLoader, Subset
from torchvision.transforms import v2

from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.errors import UnsupportedLoader
from tests.conformance import same
from tests.images import small_photographs

NAMES = ["class10/b", "class10/a", "class2/c", "class2/d"]


@pytest.fixture
def root(tmp_path: Path) -> str:
    for name, pixels in zip(NAMES, small_photographs(len(NAMES)), strict=True):
        path = tmp_path / f"{name}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path)
    return str(tmp_path)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # timm leaves them open
def test_files_and_classes_are_those_of_the_reader(root: str) -> None:
    dataset = ImageDataset(root)
    source = FolderSource.from_dataset(dataset)
    samples = [(source.path(i), source.read(i).target) for i in range(len(source))]
    assert samples == dataset.reader.samples
    assert [target for _, target in samples] == [target for _, target in dataset] == [0, 0, 1, 1]
    assert source.root == root
    assert (source.classes, source.class_to_idx) == (
        ["class2", "class10"],
        {"class2": 0, "class10": 1},
    )
    part = FolderSource.from_dataset(Subset(dataset, [-1, 0]))
    assert [part.path(i) for i in range(2)] == [samples[3][0], samples[0][0]]


def test_its_loader_is_converted(root: str) -> None:
    dataset = ImageDataset(root)
    dataset.transform = v2.Compose([v2.RandomCrop(12), v2.PILToTensor()])
    theirs = DataLoader(dataset, 2, shuffle=True)
    made = StatefulGPULoader.from_dataloader(theirs, seed=1)
    source = FolderSource.from_dataset(dataset)
    by_hand = StatefulGPULoader(source, 2, shuffle=True, seed=1, transform=[T.RandomCrop(12)])
    assert same(list(made), list(by_hand))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("input_img_mode", "L"),
        ("input_img_mode", ""),
        ("load_bytes", True),
        ("additional_features", ["width"]),
        ("target_transform", str),
    ],
)
def test_what_is_no_image_with_a_class_is_refused(root: str, name: str, value: Any) -> None:
    dataset = ImageDataset(root)
    setattr(dataset, name, value)
    dataset.transform = v2.PILToTensor()
    said = "targets" if name == "target_transform" else f"{name}={value!r}"
    with pytest.raises(ValueError, match=re.escape(said)):
        FolderSource.from_dataset(dataset)
    with pytest.raises(UnsupportedLoader) as caught:
        StatefulGPULoader.from_dataloader(DataLoader(dataset))
    assert [part.place for part in caught.value.refused] == ["loader.dataset"]


class OwnReader(ReaderImageFolder):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index - 1)


class OwnDataset(ImageDataset):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index - 1)


@pytest.mark.parametrize("reader", [ReaderImageInTar, OwnReader])
def test_another_reader_is_refused(reader: Any, root: str) -> None:
    dataset = ImageDataset(root)
    dataset.reader = reader.__new__(reader)
    with pytest.raises(TypeError, match=reader.__name__):
        FolderSource.from_dataset(dataset)


def test_another_dataset_is_refused(root: str) -> None:
    with pytest.raises(TypeError, match="OwnDataset"):
        FolderSource.from_dataset(OwnDataset(root))


def test_class_numbers_with_gaps_have_no_list_of_names(root: str) -> None:
    """A class map may give any numbers."""
    dataset = ImageDataset(root)
    dataset.reader.class_to_idx = {"class2": 0, "class10": 7}
    source = FolderSource.from_dataset(dataset)
    assert (source.classes, source.class_to_idx) == ([], {"class2": 0, "class10": 7})
