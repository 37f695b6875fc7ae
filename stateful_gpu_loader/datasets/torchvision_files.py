"""Files and targets of torchvision's and timm's datasets that list image files."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Subset


@dataclass(frozen=True)
class ListedFiles:
    """The image files of a dataset, in its order."""

    root: str
    """Absolute folder that the paths are relative to."""
    paths: list[str]
    """n paths, relative to ``root``, or absolute if they lie elsewhere."""
    targets: list[Any]
    classes: list[str]
    """Names of the classes, if any."""
    class_to_idx: dict[str, int]


_Pairs = tuple[Sequence[Any], Sequence[Any]]


def _pairs_of(name: str) -> Callable[[Any], _Pairs]:
    """Read an attribute that lists (path, target) pairs."""

    def split(dataset: Any) -> _Pairs:
        pairs = getattr(dataset, name)
        return [path for path, _ in pairs], [target for _, target in pairs]

    return split


def _lists_of(paths: str, targets: str) -> Callable[[Any], _Pairs]:
    """Read two attributes: a list of paths and a list of targets."""
    return lambda dataset: (getattr(dataset, paths), getattr(dataset, targets))


def _pets(dataset: Any) -> _Pairs:
    lists = {"category": dataset._labels, "binary-category": dataset._bin_labels}
    kinds = dataset._target_types
    if len(kinds) != 1 or kinds[0] not in lists:
        raise ValueError(
            f"OxfordIIITPet has target_types={kinds!r}, but a target here is one class. Remedy: "
            "target_types='category' or 'binary-category'"
        )
    return dataset._images, lists[kinds[0]]


def _timms(dataset: Any) -> _Pairs:
    reader = dataset.reader
    if known_class(reader, ("ReaderImageFolder",)) is None:
        raise TypeError(
            f"timm's ImageDataset has a {type(reader).__name__}, which is not a list of image "
            "files. Remedy: a Source of the same data, such as HuggingFaceSource or TarSource"
        )
    for name, plain in (
        ("input_img_mode", "RGB"),
        ("load_bytes", False),
        ("additional_features", None),
    ):
        value = getattr(dataset, name)
        if value != plain:
            raise ValueError(
                f"timm's ImageDataset has {name}={value!r}, so its samples are not RGB images "
                f"with classes. Remedy: {name}={plain!r}"
            )
    return _pairs_of("samples")(reader)


_LISTS: dict[str, Callable[[Any], _Pairs]] = {
    "CLEVRClassification": _lists_of("_image_files", "_labels"),
    "DTD": _lists_of("_image_files", "_labels"),
    "DatasetFolder": _pairs_of("samples"),
    "EuroSAT": _pairs_of("samples"),
    "FGVCAircraft": _lists_of("_image_files", "_labels"),
    "Flowers102": _lists_of("_image_files", "_labels"),
    "Food101": _lists_of("_image_files", "_labels"),
    "GTSRB": _pairs_of("_samples"),
    "ImageDataset": _timms,
    "Imagenette": _pairs_of("_samples"),
    "LFWPeople": _lists_of("data", "targets"),
    "OxfordIIITPet": _pets,
    "Places365": _pairs_of("imgs"),
    "RenderedSST2": _pairs_of("_samples"),
    "StanfordCars": _pairs_of("_samples"),
    "SUN397": _lists_of("_image_files", "_labels"),
}
"""Reader of the files and targets of timm's ImageDataset, and of classes of torchvision.datasets.
ImageFolder, ImageNet and Country211 are DatasetFolders."""

CALL_TRANSFORMS = ("OxfordIIITPet", "Places365")
"""Datasets of torchvision that call their attribute ``transforms``, and not ``transform`` and
``target_transform``."""

_PACKAGES = ("torchvision.datasets.", "timm.data.")

_READ_BY = ("__getitem__", "__getitems__", "__len__")
"""Methods that a subclass may not replace."""

_UNREADABLE = (".bmp", ".gif", ".pgm", ".tif", ".tiff")
"""Endings of files that Pillow opens but the decoders do not."""


def files_of(dataset: Any) -> ListedFiles:
    """Return the files and targets of a dataset of torchvision or timm, or of a Subset of it.

    Raises:
        TypeError: the dataset is not a list of image files that Pillow opens as RGB.
        ValueError: the targets are made by a function, or are not single classes.
    """
    if type(dataset) is Subset:
        whole = files_of(dataset.dataset)
        return ListedFiles(
            root=whole.root,
            paths=[whole.paths[i] for i in dataset.indices],
            targets=[whole.targets[i] for i in dataset.indices],
            classes=whole.classes,
            class_to_idx=whole.class_to_idx,
        )
    name = _listed_class(dataset)
    _check_loader(dataset, name)
    if makes_targets(dataset):
        raise ValueError(
            f"{type(dataset).__name__} has a transform of its targets, which is not called here. "
            "Remedy: apply it once to every target, and pass files and targets to "
            "FolderSource.from_paths(paths, labels)"
        )
    given, targets = _LISTS[name](dataset)
    paths = [os.fspath(path) for path in given]
    _check_endings(dataset, paths)
    if any(target is None for target in targets):
        raise ValueError(
            f"{type(dataset).__name__} has no targets in this split. Remedy: "
            "FolderSource.from_paths(paths)"
        )
    lists = dataset.reader if name == "ImageDataset" else dataset
    root = os.fspath(lists.root)
    above = os.path.join(root, "")
    classes, numbers = _classes_of(lists)
    return ListedFiles(
        root=os.path.abspath(root),
        paths=[
            path[len(above) :] if path.startswith(above) else os.path.abspath(path)
            for path in paths
        ],
        targets=list(targets),
        classes=classes,
        class_to_idx=numbers,
    )


def targets_of(dataset: Any) -> Sequence[Any]:
    """Return the n targets of a dataset that :func:`files_of` takes, as they are."""
    return _LISTS[_listed_class(dataset)](dataset)[1]


def known_class(dataset: Any, among: Collection[str]) -> str | None:
    """Return the class of torchvision or timm that decides what a dataset's samples are.

    Args:
        among: names of the classes to choose from.

    Returns:
        its name; None if there is none, or if a subclass replaces a method that reads samples.
    """
    kind = type(dataset)
    for cls in kind.__mro__:
        is_known = cls.__module__.startswith(_PACKAGES) and cls.__name__ in among
        if is_known and all(
            getattr(cls, name, None) is getattr(kind, name, None) for name in _READ_BY
        ):
            return cls.__name__
    return None


def makes_targets(dataset: Any) -> bool:
    """Return whether a function makes the targets: a transform of targets, or a joint one."""
    if has_joint_transform(dataset) or getattr(dataset, "target_transform", None) is not None:
        return True
    called = getattr(getattr(dataset, "transforms", None), "target_transform", None)
    return called is not None and known_class(dataset, CALL_TRANSFORMS) is not None


def has_joint_transform(dataset: Any) -> bool:
    """Return whether one function makes the images and the targets."""
    transforms = getattr(dataset, "transforms", None)
    return transforms is not None and type(transforms).__name__ != "StandardTransform"


def _listed_class(dataset: Any) -> str:
    """Return the name of the dataset's class in :data:`_LISTS`.

    Raises:
        TypeError: it has none.
    """
    name, kind = known_class(dataset, _LISTS), type(dataset)
    if name is not None:
        return name
    described = f"{kind.__module__}.{kind.__qualname__}"
    if hasattr(dataset, "data") and hasattr(dataset, "targets"):
        remedy = "ArraySource(dataset.data, dataset.targets)"
    else:
        remedy = "FolderSource.from_paths(paths, labels), or a Source of its own"
    raise TypeError(
        f"{described} is not a supported list of image files. Supported are timm's ImageDataset, "
        f"torchvision's {', '.join(sorted(_LISTS.keys() - {'ImageDataset'}))}, and subclasses with "
        f"the same __getitem__. Remedy: {remedy}"
    )


def _check_loader(dataset: Any, name: str) -> None:
    """Refuse a loader whose images differ from the decoders' images."""
    from torchvision.datasets import folder

    loader = getattr(dataset, "loader", getattr(dataset, "_loader", folder.default_loader))
    if loader not in (folder.default_loader, folder.pil_loader, folder.accimage_loader):
        raise TypeError(
            f"{type(dataset).__name__} opens its files by {loader!r}, whose images may differ from "
            f"those of {name}'s default loader. Remedy: leave loader= out, or "
            "FolderSource.from_paths(paths, labels) if the files are JPEG, PNG, WebP or PPM"
        )


def _check_endings(dataset: Any, paths: Sequence[str]) -> None:
    unreadable = [path for path in paths if path.lower().endswith(_UNREADABLE)]
    if unreadable:
        raise ValueError(
            f"{len(unreadable)} of the {len(paths)} files of {type(dataset).__name__} are of a "
            f"format that the decoders do not read, such as {unreadable[0]!r}. Remedy: convert "
            "them to PNG, or leave them out of the dataset"
        )


def _classes_of(dataset: Any) -> tuple[list[str], dict[str, int]]:
    """Return the names and numbers of the classes; for ImageNet the names are its folders'.

    timm and LFWPeople keep only a number for each name.
    """
    fields = [("wnids", "wnid_to_idx"), ("classes", "class_to_idx")]
    if getattr(dataset, "_target_types", None) == ["binary-category"]:
        fields = [("bin_classes", "bin_class_to_idx")]
    for names, numbers in fields:
        found = getattr(dataset, names, None)
        if found is not None and all(isinstance(each, str) for each in found):
            counted = {name: number for number, name in enumerate(found)}
            return list(found), dict(getattr(dataset, numbers, counted))
    numbered = getattr(dataset, "class_to_idx", {})
    in_order = sorted(numbered, key=numbered.__getitem__)
    is_whole = [numbered[name] for name in in_order] == list(range(len(in_order)))
    return in_order if is_whole else [], dict(numbered)
