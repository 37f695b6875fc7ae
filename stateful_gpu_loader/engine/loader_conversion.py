"""Arguments of a fast loader that is equivalent to a DataLoader."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
)
from torchdata.stateful_dataloader import sampler as torchdata

from stateful_gpu_loader.datasets import ArraySource, FolderSource, as_source
from stateful_gpu_loader.datasets.torchvision_files import (
    CALL_TRANSFORMS,
    has_joint_transform,
    known_class,
    makes_targets,
    targets_of,
)
from stateful_gpu_loader.engine.config import ARGUMENTS
from stateful_gpu_loader.errors import RefusedPart, UnsupportedLoader, UnsupportedTransform
from stateful_gpu_loader.transforms import Compose
from stateful_gpu_loader.transforms.conversion import from_pillow

_ORDER = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")
"""Arguments of the order, which exclude one another."""
_ARRAYS = {"CIFAR10": "targets", "CIFAR100": "targets", "STL10": "labels", "SVHN": "labels"}
"""Datasets of torchvision that hold uint8 RGB images in ``data``, and where their targets are."""
_NEED_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")
"""Arguments that DataLoader refuses without workers."""
_DECIDE_BATCHES = ("__iter__", "__len__", "_get_iterator", "_index_sampler", "_auto_collation")
"""Members of a loader's class that decide its batches."""
_PACKAGE = __name__.partition(".")[0]


@dataclass(frozen=True)
class LoaderConversion:
    """Arguments of a loader on the fast path, and what was converted for it.

    Args:
        arguments: arguments of the loader's class.
        summary: the dataset and the transform, before and after, in one line.
    """

    arguments: dict[str, Any]
    summary: str

    @classmethod
    def of(cls, loader: Any, changes: Mapping[str, Any]) -> LoaderConversion:
        """Return the arguments of an equivalent fast loader.

        Args:
            loader: the DataLoader.
            changes: arguments that are taken instead of those of ``loader``. A ``dataset`` or a
                ``transform`` among them is not converted. With a ``dataset`` alone, the attribute
                ``transform`` of the replaced dataset is, or of the dataset inside its Subset.

        Raises:
            UnsupportedLoader: the dataset, its transform or the class of the loader has no
                equivalent.
        """
        _check_class(loader)
        # A subclass may use these names differently.
        known = inspect.signature(_known_class(loader)).parameters.keys() - {"dataset", *_ORDER}
        arguments = {name: getattr(loader, name) for name in ARGUMENTS if name in known}
        arguments |= _order_of(loader, changes)
        default = default_convert if loader.batch_sampler is None else default_collate
        if arguments["collate_fn"] is default:
            arguments["collate_fn"] = None
        if not changes.get("num_workers", loader.num_workers):
            arguments = {k: v for k, v in arguments.items() if k not in _NEED_WORKERS}
        source, transform = _converted(loader, changes)
        before = f"{_name(loader.dataset)}, {_name(loader)}"
        return cls(
            {**arguments, "dataset": source, "transform": transform, **changes},
            f"{before} -> {source!r}, transform={transform!r}",
        )


def _check_class(loader: Any) -> None:
    """Refuse a class that may deliver anything but what DataLoader does."""
    if not isinstance(loader, DataLoader):
        raise _refusal("loader", loader, "it is not a torch.utils.data.DataLoader")
    known = _known_class(loader)
    for name in _DECIDE_BATCHES:
        if getattr(type(loader), name) is not getattr(known, name):
            raise _refusal("loader", loader, f"its class has its own {name}")


def _known_class(loader: DataLoader[Any]) -> type[Any]:
    """Return the first class of torch, torchdata or this package that a loader's class is."""
    packages = ("torch", "torchdata", _PACKAGE)
    return next(c for c in type(loader).__mro__ if c.__module__.partition(".")[0] in packages)


def _own(loader: DataLoader[Any], name: str) -> Any:
    """Return an argument of a loader of this package; None of another loader."""
    is_ours = _known_class(loader).__module__.partition(".")[0] == _PACKAGE
    return getattr(loader, name) if is_ours else None


def _order_of(loader: DataLoader[Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that decide the order, without those that ``changes`` replace."""
    batches = loader.batch_sampler
    if changes.get("batch_sampler") is not None:
        return {}
    is_plain = type(batches) in (BatchSampler, torchdata.BatchSampler)
    if batches is not None and (loader.batch_size is None or not is_plain):
        return {"batch_sampler": batches}
    # torch iterates the batch sampler, which programs may change.
    part: Any = loader if batches is None else batches
    order: dict[str, Any] = {"batch_size": part.batch_size, "drop_last": part.drop_last}
    if changes.keys() & {"shuffle", "sampler"}:
        return order
    return order | (_shuffle_of_torchdata(loader) or sampler_of(loader))


def _shuffle_of_torchdata(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return ``shuffle`` for the sampler that StatefulDataLoader makes of it; empty for others.

    That sampler has a generator even if the loader has none. The seed is drawn from it.
    """
    sampler: Any = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if type(sampler) is not torchdata.RandomSampler or not _yields_each_once(sampler, loader):
        return {}
    if loader.generator not in (None, sampler.generator):
        return {}
    return {"shuffle": True, "generator": sampler.generator}


def sampler_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the sampler; a plain one of torch over the whole dataset becomes ``shuffle``."""
    sampler: Any = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if _own(loader, "shuffle") and sampler is loader.sampler:
        return {"shuffle": True}
    kind = type(sampler)
    if kind in (SequentialSampler, RandomSampler) and _yields_each_once(sampler, loader):
        if kind is SequentialSampler:
            return {"shuffle": False}
        if sampler.generator in (None, loader.generator):
            return {"shuffle": True}
    return {"sampler": sampler}


def _yields_each_once(sampler: Any, loader: DataLoader[Any]) -> bool:
    """Whether a sequential or random sampler yields each sample of the loader's dataset once."""
    if type(sampler) is not SequentialSampler and (sampler.replacement or sampler._num_samples):
        return False
    return len(sampler.data_source) == len(loader.dataset)  # type: ignore[arg-type]


def _converted(loader: DataLoader[Any], changes: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the source and the recipes; those in ``changes`` unchanged."""
    dataset: Any = loader.dataset
    transforms: list[tuple[str, Any]] | None = None
    if "dataset" in changes:
        source = changes["dataset"]
    else:
        source, transforms = _source_of(dataset, "loader.dataset")
    if "transform" in changes:
        return source, changes["transform"]
    own = _own(loader, "transform")
    if _is_ours(dataset):
        return source, own
    if own is not None:
        reason = "it is called with whole samples, and a source's transform with images"
        raise _refusal("loader.transform", own, reason)
    if transforms is None:
        transforms = _replaced_transforms(dataset, "loader.dataset")
    return source, _recipes_of(transforms)


def _is_ours(dataset: Any) -> bool:
    """Whether a loader's ``transform`` gets images, and the dataset has no transform itself."""
    module = type(dataset).__module__
    return as_source(dataset) is not None or module.partition(".")[0] == _PACKAGE


def _replaced_transforms(dataset: Any, place: str) -> list[tuple[str, Any]]:
    """Return the places and transforms of a dataset whose images are read from elsewhere."""
    if type(dataset) is Subset:
        return _replaced_transforms(dataset.dataset, f"{place}.dataset")
    if type(dataset) is ConcatDataset:
        return [
            each
            for i, part in enumerate(dataset.datasets)
            for each in _replaced_transforms(part, f"{place}.datasets[{i}]")
        ]
    if _is_ours(dataset) or type(dataset) is TensorDataset:
        return []
    if not hasattr(dataset, "transform") or has_joint_transform(dataset):
        reason = "its images cannot be read without their transform: pass transform=, too"
        raise _refusal(place, dataset, reason)
    return [] if dataset.transform is None else [(f"{place}.transform", dataset.transform)]


def _refusal(place: str, thing: Any, reason: str) -> UnsupportedLoader:
    return UnsupportedLoader([RefusedPart(place, thing, reason)])


def _source_of(dataset: Any, place: str) -> tuple[Any, list[tuple[str, Any]]]:
    """Return a dataset's equivalent source, and its parts' places and transforms."""
    if as_source(dataset) is not None:
        return dataset, []
    if isinstance(dataset, IterableDataset):
        raise _refusal(place, dataset, "it is iterable, and its samples have no index")
    if type(dataset) is Subset:
        whole, transforms = _source_of(dataset.dataset, f"{place}.dataset")
        return Subset(whole, dataset.indices), transforms
    if type(dataset) is ConcatDataset:
        parts = [
            _source_of(part, f"{place}.datasets[{i}]") for i, part in enumerate(dataset.datasets)
        ]
        has_transforms = [bool(transforms) for _, transforms in parts]
        if any(has_transforms) and not all(has_transforms):
            i = has_transforms.index(False)
            reason = "it has no transform, and another dataset has one"
            raise _refusal(f"{place}.datasets[{i}]", dataset.datasets[i], reason)
        return ConcatDataset([source for source, _ in parts]), [
            each for _, transforms in parts for each in transforms
        ]
    if type(dataset) is TensorDataset:
        return _tensors(dataset, place), []
    name = known_class(dataset, _ARRAYS)
    if name is not None:
        targets = getattr(dataset, _ARRAYS[name])
        _check_targets(dataset, targets, place)
        if np.ndim(dataset.data) == 3:
            raise _refusal(place, dataset, "its images are grey, and a source gives RGB")
        source: Any = _array_source(dataset, place, dataset.data, targets)
    elif type(dataset).__module__.partition(".")[0] == "datasets":
        reason = (
            "a function makes its samples, or Pillow does. HuggingFaceSource reads the same rows: "
            "pass dataset=HuggingFaceSource(rows) and transform=, with the recipes or "
            "transforms.from_torchvision(...) of what the function does"
        )
        raise _refusal(place, dataset, reason)
    else:
        try:
            source = FolderSource.from_dataset(dataset)
        except (TypeError, ValueError) as error:
            raise _refusal(place, dataset, _without_remedy(error)) from error
        _check_classes(dataset, place)
        called = getattr(getattr(dataset, "transforms", None), "transform", None)
        if known_class(dataset, CALL_TRANSFORMS) and called is not dataset.transform:
            reason = "its transform was replaced, but it calls the one that it was built with"
            raise _refusal(place, dataset, reason)
    return source, [(f"{place}.transform", dataset.transform)]


def _check_targets(dataset: Any, targets: Any, place: str) -> None:
    if makes_targets(dataset):
        raise _refusal(place, dataset, "a function makes its targets")
    if targets is None:
        raise _refusal(place, dataset, "its images have no targets")
    # CIFAR gives its targets as they are, and the others give an int.
    if not hasattr(dataset, "targets"):
        array = np.asarray(targets)
        if array.dtype.kind not in "iu":
            raise _refusal(place, dataset, f"its targets are {array.dtype}, and it gives ints")
    elif isinstance(targets, list):
        kinds = {type(target) for target in targets}
        if len(kinds) > 1 or not kinds <= {int, float, bool, str}:
            names = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise _refusal(place, dataset, f"its targets are a list of {names}")
    else:
        array = np.asarray(targets)
        if array.ndim == 1 and array.dtype not in (np.int64, np.float64, np.bool_):
            reason = f"its targets are {array.dtype}, and a source gives numbers of Python"
            raise _refusal(place, dataset, reason)


def _check_classes(dataset: Any, place: str) -> None:
    """Refuse targets of files that torch would collate to another dtype than int64."""
    targets = targets_of(dataset)
    kinds = {type(target) for target in targets}
    others: set[Any] = kinds - {int, np.int64}
    if others == {torch.Tensor}:
        others = {target.dtype for target in targets if type(target) is torch.Tensor}
        others -= {torch.int64}
    if others:
        names = ", ".join(sorted(getattr(kind, "__name__", str(kind)) for kind in others))
        raise _refusal(place, dataset, f"its targets are {names}, and a source gives ints")


def _tensors(dataset: TensorDataset, place: str) -> ArraySource:
    tensors = dataset.tensors
    if (
        len(tensors) != 2
        or tensors[0].dtype is not torch.uint8
        or tensors[0].ndim != 4
        or tensors[0].shape[1] != 3
        or tensors[1].dtype is not torch.int64
        or tensors[1].ndim != 1
    ):
        has = ", ".join(f"{tensor.dtype} {list(tensor.shape)}" for tensor in tensors)
        wanted = "uint8 images [n, 3, height, width] with int64 targets [n]"
        raise _refusal(place, dataset, f"it holds {has}, and not {wanted}")
    return _array_source(dataset, place, *tensors)


def _array_source(dataset: Any, place: str, images: Any, targets: Any) -> ArraySource:
    try:
        return ArraySource(images, targets)
    except (TypeError, ValueError) as error:
        raise _refusal(place, dataset, _without_remedy(error)) from error


def _without_remedy(error: Exception) -> str:
    return str(error).partition(" Remedy:")[0].rstrip(".")


def _recipes_of(transforms: list[tuple[str, Any]]) -> Compose | None:
    """Return the recipes that equal the datasets' transforms.

    Args:
        transforms: place and transform of each dataset; empty where the images are tensors.
    """
    if not transforms:
        return None
    made: list[Compose] = []
    refused: list[RefusedPart] = []
    for place, transform in transforms:
        if transform is None:
            raise _refusal(place, transform, "without it the samples are Pillow images")
        try:
            made.append(from_pillow(transform))
        except UnsupportedTransform as error:
            refused += [
                part._replace(place=part.place.replace("transform", place, 1))
                for part in error.refused
            ]
    if refused:
        raise UnsupportedLoader(refused)
    for (place, transform), recipes in zip(transforms, made, strict=True):
        if repr(recipes) != repr(made[0]):
            raise _refusal(place, transform, "another dataset has another transform")
    return made[0]


def _name(thing: Any) -> str:
    return type(thing).__name__
