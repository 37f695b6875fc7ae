"""torchvision datasets as folder sources: their files, targets and order."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image
from torch.utils.data import Subset, random_split
from torchvision import datasets
from torchvision.datasets import ImageFolder, folder
from torchvision.io import decode_image
from torchvision.transforms import v2

from stateful_gpu_loader import ArraySource, FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from tests.conformance import same
from tests.images import small_photographs, write_photo_folder

NAMES = ["a/0", "a/1", "b/2", "c/3", "c/4", "b/5"]
LABELS = [0, 0, 1, 2, 2, 1]
CLASSES = ["a", "b", "c"]


def write(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(small_photographs(len(NAMES))[number]).save(path)


def lines(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{text}\n" for text in texts))


def class_folders(root: Path, ending: str = ".jpg") -> None:
    for number, name in enumerate(NAMES):
        write(root / f"{name}{ending}", number)


def flowers(root: Path) -> Any:
    base = root / "flowers-102"
    for number in range(6):
        write(base / "jpg" / f"image_{number + 1:05d}.jpg", number)
    scipy.io.savemat(base / "setid.mat", {"trnid": [4, 2, 6, 1]})
    scipy.io.savemat(base / "imagelabels.mat", {"labels": [1, 1, 2, 3, 3, 2]})
    with patch.object(datasets.Flowers102, "_check_integrity", lambda self: True):
        return datasets.Flowers102(str(root))


def food(root: Path) -> Any:
    class_folders(root / "food-101" / "images")
    meta = {name: [each for each in NAMES if each.startswith(name)] for name in "cab"}
    lines(root / "food-101" / "meta" / "train.json", [json.dumps(meta)])
    return datasets.Food101(str(root))


def pets(root: Path, **options: Any) -> Any:
    base, names = root / "oxford-iiit-pet", ["Abyssinian_1", "pug_2", "pug_3"]
    for number, name in enumerate(names):
        write(base / "images" / f"{name}.jpg", number)
        write(base / "annotations" / "trimaps" / f"{name}.png", number)
    texts = ["Abyssinian_1 1 1 1", "pug_2 2 2 1", "pug_3 2 2 1"]
    lines(base / "annotations" / "trainval.txt", texts)
    return datasets.OxfordIIITPet(str(root), **options)


def cars(root: Path) -> Any:
    base = root / "stanford_cars"
    for number in range(3):
        write(base / "cars_train" / f"{number}.jpg", number)
    (base / "devkit").mkdir()
    kinds = [("fname", "U10"), ("class", "u1")]
    annotations = np.array([("2.jpg", 2), ("0.jpg", 1), ("1.jpg", 2)], dtype=kinds)
    scipy.io.savemat(base / "devkit" / "cars_train_annos.mat", {"annotations": annotations})
    names = np.array(["Audi", "VW"], dtype=object)
    scipy.io.savemat(base / "devkit" / "cars_meta.mat", {"class_names": names})
    return datasets.StanfordCars(str(root))


def aircraft(root: Path) -> Any:
    base = root / "fgvc-aircraft-2013b" / "data"
    for number in range(3):
        write(base / "images" / f"{number}.jpg", number)
    lines(base / "variants.txt", ["A 320", "707"])
    lines(base / "images_variant_trainval.txt", ["2 707", "0 A 320", "1 707"])
    return datasets.FGVCAircraft(str(root))


def textures(root: Path) -> Any:
    class_folders(root / "dtd" / "dtd" / "images")
    lines(root / "dtd" / "dtd" / "labels" / "train1.txt", [f"{name}.jpg" for name in NAMES[::-1]])
    return datasets.DTD(str(root))


def signs(root: Path) -> Any:
    class_folders(root / "gtsrb" / "GTSRB" / "Training", ".ppm")
    return datasets.GTSRB(str(root))


def imagenette(root: Path) -> Any:
    for number, name in enumerate(["n01440764/1", "n02102040/2", "n02102040/3"]):
        write(root / "imagenette2" / "train" / f"{name}.JPEG", number)
    return datasets.Imagenette(str(root))


def imagenet(root: Path) -> Any:
    for number, name in enumerate(["n01440764/1", "n02102040/2", "n02102040/3"]):
        write(root / "train" / f"{name}.JPEG", number)
    words = {"n01440764": ("tench", "Tinca tinca"), "n02102040": ("springer",)}
    torch.save((words, []), root / "meta.bin")
    return datasets.ImageNet(str(root))


def sentences(root: Path) -> Any:
    for number, name in enumerate(["negative/1", "negative/0", "positive/3"]):
        write(root / "rendered-sst2" / "train" / f"{name}.png", number)
    return datasets.RenderedSST2(str(root))


def scenes(root: Path) -> Any:
    for number, name in enumerate(["a/abbey/sun_x", "b/beach/sun_y", "a/abbey/sun_z"]):
        write(root / "SUN397" / f"{name}.jpg", number)
    lines(root / "SUN397" / "ClassName.txt", ["/a/abbey", "/b/beach"])
    return datasets.SUN397(str(root))


def clevr(root: Path, split: str = "train") -> Any:
    base = root / "clevr" / "CLEVR_v1.0"
    content = []
    for number in range(3):
        write(base / "images" / split / f"CLEVR_{number}.png", number)
        objects = [{}] * (3 - number)
        content.append({"image_filename": f"CLEVR_{number}.png", "objects": objects})
    lines(base / "scenes" / f"CLEVR_{split}_scenes.json", [json.dumps({"scenes": content})])
    return datasets.CLEVRClassification(str(root), split=split)


def faces(root: Path) -> Any:
    class_folders(root)
    dataset = datasets.LFWPeople.__new__(datasets.LFWPeople)  # it wants the archive's checksum
    dataset.root, dataset._loader = str(root), folder.default_loader
    dataset.data, dataset.targets = [str(root / f"{name}.jpg") for name in NAMES], LABELS
    dataset.class_to_idx = {"a": 0, "b": 1, "c": 2}
    dataset.transform = dataset.target_transform = None
    return dataset


def places(root: Path) -> Any:
    class_folders(root)
    dataset = datasets.Places365.__new__(datasets.Places365)  # it wants the archive's checksum
    dataset.root, dataset.loader = str(root), folder.default_loader
    dataset.imgs = [(str(root / f"{name}.jpg"), i) for name, i in zip(NAMES, LABELS, strict=True)]
    dataset.classes, dataset.class_to_idx = CLASSES, {"a": 0, "b": 1, "c": 2}
    dataset.transforms = dataset.target_transform = None
    return dataset


def country(root: Path) -> Any:
    class_folders(root / "country211" / "train")
    return datasets.Country211(str(root))


def satellite(root: Path) -> Any:
    class_folders(root / "eurosat" / "2750")
    return datasets.EuroSAT(str(root))


def plain(root: Path) -> Any:
    class_folders(root)
    return ImageFolder(str(root))


def own_folder(root: Path) -> Any:
    """Return a dataset with a selection of files, whose paths are Path objects."""
    class_folders(root)
    return datasets.DatasetFolder(
        root, folder.default_loader, is_valid_file=lambda path: Path(path).stem != "1"
    )


MADE: dict[str, Callable[[Path], Any]] = {
    "ImageFolder": plain,
    "DatasetFolder": own_folder,
    "ImageNet": imagenet,
    "Country211": country,
    "EuroSAT": satellite,
    "CLEVRClassification": clevr,
    "DTD": textures,
    "FGVCAircraft": aircraft,
    "Flowers102": flowers,
    "Food101": food,
    "GTSRB": signs,
    "Imagenette": imagenette,
    "LFWPeople": faces,
    "Places365": places,
    "OxfordIIITPet": pets,
    "OxfordIIITPet, cat or dog": partial(pets, target_types="binary-category"),
    "RenderedSST2": sentences,
    "StanfordCars": cars,
    "SUN397": scenes,
}


@pytest.mark.parametrize("name", MADE)
def test_files_and_targets_are_those_of_the_dataset(tmp_path: Path, name: str) -> None:
    dataset = MADE[name](tmp_path)
    source = FolderSource.from_dataset(dataset)
    assert len(source) == len(dataset) > 1
    for index in range(len(dataset)):
        image, target = dataset[index]
        assert np.array_equal(np.asarray(Image.open(source.path(index))), np.asarray(image))
        assert source.read(index).target == target
    numbers = source.class_to_idx.values()
    assert not source.classes or set(source.targets.tolist()) <= set(numbers)
    moved = shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name} elsewhere"))
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    if name != "SUN397":  # which lists its files in the order of the file system
        names = [source._names[index] for index in range(len(source))]
        copied = FolderSource.from_paths(names, source.targets, moved)
        assert copied.fingerprint() == source.fingerprint()


def test_a_folder_of_classes_is_the_same_dataset(tmp_path: Path) -> None:
    """States fit both."""
    write_photo_folder(tmp_path, num_classes=3, per_class=4)
    one, other = FolderSource(tmp_path), FolderSource.from_dataset(ImageFolder(str(tmp_path)))
    assert (other.root, other.classes, other.class_to_idx) == (
        one.root,
        one.classes,
        one.class_to_idx,
    )
    assert other.fingerprint() == one.fingerprint()
    loaders = [
        StatefulGPULoader(each, batch_size=4, shuffle=True, seed=1, transform=[T.Resize((32, 32))])
        for each in (one, other)
    ]
    batches = iter(loaders[0])
    next(batches)
    loaders[1].load_state_dict(loaders[0].state_dict())
    assert same(list(batches), list(loaders[1]))


def test_a_relative_root_is_that_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class_folders(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    source = FolderSource.from_dataset(ImageFolder("photos"))
    monkeypatch.chdir("/")
    assert source.fingerprint() == FolderSource(tmp_path / "photos").fingerprint()
    assert source.read(0).data.numel() > 100


def test_files_elsewhere_keep_their_paths(tmp_path: Path) -> None:
    """A program may have added samples to the list."""
    dataset = plain(tmp_path / "photos")
    write(tmp_path / "far.jpg", 0)
    dataset.samples.append((str(tmp_path / "far.jpg"), 2))
    source = FolderSource.from_dataset(dataset)
    assert source.path(6) == str(tmp_path / "far.jpg")
    assert source.targets.tolist() == [*sorted(LABELS), 2]


def test_parts_are_the_files_of_the_part(tmp_path: Path) -> None:
    dataset = plain(tmp_path)
    part, _ = random_split(dataset, [4, 2], torch.Generator().manual_seed(0))
    nested = Subset(part, [3, 0])
    source = FolderSource.from_dataset(nested)
    expected = [dataset.samples[part.indices[i]] for i in (3, 0)]
    assert [(source.path(i), source.read(i).target) for i in range(2)] == expected
    assert source.classes == CLASSES


def test_the_transform_belongs_to_the_loader(tmp_path: Path) -> None:
    class_folders(tmp_path)
    dataset = ImageFolder(str(tmp_path), transform=v2.Resize(3))
    images, _ = next(iter(StatefulGPULoader(FolderSource.from_dataset(dataset), batch_size=6)))
    assert images.shape == (6, 3, 20, 16)


class Darker(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        image, target = super().__getitem__(index)
        return image.point(lambda value: value // 2), target


class Named(ImageFolder):
    """A subclass that reads like its base class."""

    def path_of(self, index: int) -> str:
        return self.samples[index][0]


def test_a_subclass_that_reads_as_its_base_is_one(tmp_path: Path) -> None:
    class_folders(tmp_path)
    assert len(FolderSource.from_dataset(Named(str(tmp_path)))) == 6


def bitmaps(root: Path) -> Any:
    class_folders(root)
    write(root / "c" / "9.bmp", 0)
    return ImageFolder(str(root))


def of_numbers(root: Path, **options: Any) -> Any:
    class_folders(root)
    return ImageFolder(str(root), **options)


def without_target_transform(dataset: Any) -> Any:
    """Return a dataset that calls the transform with which it was built."""
    dataset.target_transform = None
    return dataset


def cifar(root: Path) -> Any:
    dataset = datasets.CIFAR10.__new__(datasets.CIFAR10)
    dataset.data, dataset.targets = small_photographs(4), [0, 1, 2, 3]
    return dataset


REFUSED: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "another loader": (partial(of_numbers, loader=decode_image), TypeError, "decode_image"),
    "another __getitem__": (
        lambda root: Darker(of_numbers(root).root),
        TypeError,
        r"Darker.*from_paths",
    ),
    "arrays": (cifar, TypeError, r"CIFAR10.*ArraySource\(dataset.data, dataset.targets\)"),
    "no dataset": (lambda root: [1, 2, 3], TypeError, "list"),
    "target_transform": (
        partial(of_numbers, target_transform=str),
        ValueError,
        "ImageFolder.*from_paths",
    ),
    "no targets": (partial(clevr, split="test"), ValueError, "CLEVRClassification has no targets"),
    "bitmaps": (bitmaps, ValueError, r"1 of the 7 files.*9\.bmp"),
    "segmentation": (
        partial(pets, target_types=["category", "segmentation"]),
        ValueError,
        "target_types",
    ),
    "an earlier target_transform": (
        lambda root: without_target_transform(pets(root, target_transform=str)),
        ValueError,
        "OxfordIIITPet.*targets",
    ),
    "transforms": (
        lambda root: pets(root, transforms=lambda image, target: (image, target + 1)),
        ValueError,
        "OxfordIIITPet.*targets",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_list_of_files_is_refused(tmp_path: Path, name: str) -> None:
    make, error, text = REFUSED[name]
    dataset = make(tmp_path)
    with pytest.raises(error, match=text):
        FolderSource.from_dataset(dataset)


def test_the_remedy_for_arrays_is_one(tmp_path: Path) -> None:
    dataset = cifar(tmp_path)
    assert len(ArraySource(dataset.data, dataset.targets)) == 4
