"""Builds a torch DataLoader that does the same work as a loader of this package."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stateful_gpu_loader.datasets import as_source
from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.loader import StatefulGPULoader
from stateful_gpu_loader.samplers import is_map
from stateful_gpu_loader.transforms import Compose
from stateful_gpu_loader.transforms.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class TorchPeer:
    """The equivalent of a loader, if there is one."""

    what: str
    """Description of the equivalent, or why there is none."""
    make: Callable[[int], DataLoader[Any]] | None
    """Builds the equivalent with a number of workers; None if there is none."""

    @classmethod
    def of(cls, loader: StatefulGPULoader[Any]) -> TorchPeer:
        """Return the loader that a user of torch's DataLoader writes for the same work.

        Pillow decodes a source's images, and torchvision's transforms of the same names augment
        them.

        >>> TorchPeer.of(StatefulGPULoader(range(10))).what
        "torch's DataLoader over the same dataset"
        """
        try:
            dataset, what = _dataset_of(loader)
        except _NoEquivalentError as error:
            return cls(what=f"torch's DataLoader was not measured: {error}", make=None)
        return cls(what=what, make=partial(_loader_over, dataset, loader))


class _NoEquivalentError(Exception):
    """There is no equivalent; the message says why."""


def _loader_over(
    dataset: Dataset[Any], ours: StatefulGPULoader[Any], num_workers: int
) -> DataLoader[Any]:
    return DataLoader(
        dataset,
        ours.batch_size,
        shuffle=None if isinstance(dataset, IterableDataset) else bool(ours.shuffle),
        collate_fn=ours.collate_fn,
        drop_last=ours.drop_last and ours.batch_size is not None,
        pin_memory=ours.pin_memory,
        num_workers=num_workers,
        prefetch_factor=ours.prefetch_factor if num_workers else None,
    )


def _dataset_of(loader: StatefulGPULoader[Any]) -> tuple[Any, str]:
    dataset: Any = loader.dataset
    if loader.batch_transform is not None:
        raise _NoEquivalentError("it has no batch_transform")
    if loader.device is not None and torch.device(loader.device).type != "cpu":
        raise _NoEquivalentError("it delivers on the CPU, but this loader on a device")
    source = as_source(dataset) if is_map(dataset) else None
    if source is not None:
        steps = _steps_of(loader.transform)
        how = "torch's DataLoader over the same files, with Pillow and torchvision's transforms"
        return _Pictures(source, steps), how
    if not (is_map(dataset) or isinstance(dataset, IterableDataset)):
        raise _NoEquivalentError(f"it cannot read a {type(dataset).__name__}")
    same = "torch's DataLoader over the same dataset"
    if loader.transform is None:
        return dataset, same
    if not is_map(dataset):
        raise _NoEquivalentError("an iterable dataset with a transform has no equivalent there")
    return _Transformed(dataset, loader.transform), f"{same}, with the same transform"


class _Pictures(Dataset[tuple[Any, Any]]):
    """A source's images, decoded by Pillow."""

    def __init__(self, source: Source, transform: Callable[[Any], Any]) -> None:
        self._source = source
        self._transform = transform

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        from PIL import Image

        sample = self._source.read(index)
        with Image.open(io.BytesIO(sample.data.numpy().tobytes())) as opened:
            return self._transform(opened.convert("RGB")), sample.target


class _Transformed(Dataset[Any]):
    """A dataset with a transform of each sample."""

    def __init__(self, dataset: Any, transform: Callable[[Any], Any]) -> None:
        self._dataset = dataset
        self._transform = transform

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._transform(self._dataset[index])


def _steps_of(transform: Any) -> Any:
    """Return the transform of a Pillow image that does what the recipes do."""
    from torchvision.transforms import v2

    given = transform if isinstance(transform, (list, tuple)) else [transform]
    recipes: list[Any] = []
    for each in given:
        recipes += [] if each is None else each.recipes if isinstance(each, Compose) else [each]
    if not all(isinstance(recipe, Recipe) for recipe in recipes):
        # A user's callable gets uint8 [3, H, W], as in this package's loader.
        return v2.Compose([v2.PILToTensor(), *given])
    steps: list[Any] = []
    is_tensor = is_float = False
    for recipe in recipes:
        name = type(recipe).__name__
        if name == "ToMemoryFormat":
            continue
        if name in ("Normalize", "ToDtype", "RandomErasing") and not is_tensor:
            steps.append(v2.ToImage())
            is_tensor = True
        if name == "Normalize" and not is_float:
            steps.append(v2.ToDtype(torch.float32, scale=True))
            is_float = True
        is_float = is_float or name == "ToDtype"
        steps.append(_same_in_torchvision(recipe))
    return v2.Compose([*steps, *([] if is_tensor else [v2.PILToTensor()])])


def _same_in_torchvision(recipe: Recipe) -> Any:
    """Return torchvision's transform of the same name, with the same arguments."""
    from torchvision.transforms import v2

    name = type(recipe).__name__
    theirs = getattr(v2, name, None)
    if theirs is None:
        raise _NoEquivalentError(f"torchvision has no {name}")
    arguments = {
        key: _as_torchvision_has_it(key, getattr(recipe, key))
        for key in inspect.signature(type(recipe)).parameters
        if key in inspect.signature(theirs).parameters and hasattr(recipe, key)
    }
    try:
        return theirs(**arguments)
    except (TypeError, ValueError) as error:
        raise _NoEquivalentError(f"torchvision's {name} refuses {arguments}: {error}") from error


def _as_torchvision_has_it(key: str, value: Any) -> Any:
    from torchvision.transforms import InterpolationMode

    is_mode = key == "interpolation" and isinstance(value, str)
    return InterpolationMode(value) if is_mode else value
