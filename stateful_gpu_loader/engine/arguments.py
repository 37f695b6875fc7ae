"""Checks of the loader's arguments against each other and the dataset."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, default_collate

from stateful_gpu_loader.datasets import CallableSource
from stateful_gpu_loader.datasets.sharded import ShardedDataset
from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.engine.config import LoaderConfig, is_int_from
from stateful_gpu_loader.engine.torch_names import size_and_rank
from stateful_gpu_loader.samplers import (
    OWN_SAMPLERS,
    DistributedShuffledSampler,
    default_sampler,
    is_map,
)
from stateful_gpu_loader.state.descriptions import describe
from stateful_gpu_loader.state.schema import ACCEPTABLE
from stateful_gpu_loader.transforms import Compose
from stateful_gpu_loader.transforms.compose import remedy_for


def check_arguments(given: LoaderConfig) -> None:
    """Check the arguments that torch does not check, or checks too late.

    Raises:
        ValueError, TypeError: an argument is out of range or has a wrong type, or two contradict
            each other.
    """
    for each in fields(given):
        check = each.metadata.get("check")
        if check is not None:
            check(each.name, getattr(given, each.name))
    _check_ranks(given.rank, given.num_replicas)
    dataset, on_bad_sample, batch_size = given.dataset, given.on_bad_sample, given.batch_size
    if on_bad_sample == "replace" and not is_map(dataset):
        raise ValueError(
            f"{on_bad_sample = } takes another sample by its index, but an iterable dataset has "
            "no indices. Remedy: on_bad_sample='drop', which takes the iterator's next samples"
        )
    if isinstance(dataset, CallableSource) and dataset.batch and batch_size is not None:
        raise ValueError(
            f"{batch_size = }, but each call of this CallableSource makes a whole batch. "
            "Remedy: batch_size=None"
        )


def _check_ranks(rank: Any, num_replicas: Any) -> None:
    if num_replicas == "auto":
        if rank is not None:
            raise ValueError(f"num_replicas='auto' reads the rank too: leave out {rank = }")
        return
    if num_replicas is None:
        if rank is not None:
            raise ValueError(f"{rank = } needs num_replicas, the number of ranks")
        return
    if not is_int_from(1, num_replicas):
        raise ValueError(f"{num_replicas = } must be a positive int, 'auto' or None")
    if not is_int_from(0, rank) or rank >= num_replicas:
        raise ValueError(f"{rank = } must be an int with 0 <= rank < {num_replicas = }")


def as_torch_takes(given: LoaderConfig) -> LoaderConfig:
    """Return the arguments for torch's loader, with a default for a missing sampler.

    Raises:
        ValueError, TypeError: the arguments contradict each other or the dataset.
    """
    # torchdata, which cannot keep its state, warns about in_order=False.
    given = replace(given, in_order=True)
    dataset, shuffle = given.dataset, given.shuffle
    if isinstance(given.sampler, OWN_SAMPLERS):
        _check_own_sampler(given)
        return given
    if isinstance(dataset, CallableSource) and shuffle:
        raise ValueError(
            f"{shuffle = }, but a CallableSource's function decides the order. Remedy: shuffle in "
            "the function, by info.epoch_idx (order.Permutation needs no list), or use a "
            "map-style dataset"
        )
    is_sharded = isinstance(dataset, ShardedDataset)
    has_sampler = given.sampler is not None or given.has_batch_sampler
    if not is_sharded and (has_sampler or not is_map(dataset)):
        return given
    if shuffle not in (None, True, False):
        raise TypeError(f"{shuffle = } must be True, False or None")
    if is_sharded:
        return replace(given, shuffle=None)
    chosen = default_sampler(
        dataset,
        shuffle=bool(shuffle),
        drop_last=given.drop_last,
        seed=given.seed,
        num_replicas=given.num_replicas,
        rank=given.rank,
    )
    return replace(given, sampler=chosen, shuffle=None)


def _check_own_sampler(given: LoaderConfig) -> None:
    """Refuse arguments of the loader that contradict its sampler of this package.

    Either may have the seed. Ranks are given to the loader, except with a
    :class:`DistributedShuffledSampler`.
    """
    sampler, names = given.sampler, ["seed"]
    if isinstance(sampler, DistributedShuffledSampler):
        names += ["num_replicas", "rank"]
        if sampler.drop_last and not given.drop_last:
            names.append("drop_last")
    for name in names:
        value, of_sampler = getattr(given, name), getattr(sampler, name)
        if value == "auto" and (sampler.num_replicas, sampler.rank) in ((1, 0), size_and_rank()):
            # A rebuilt loader gets the first loader's default sampler.
            continue
        if value is not None and of_sampler is not None and value != of_sampler:
            raise ValueError(
                f"{name}={value!r} contradicts the sampler, which has {of_sampler!r}. Remedy: "
                "give it only to the sampler, or leave the sampler out"
            )


def as_device(device: Any) -> torch.device | None:
    """Return the device of finished batches, or None for the CPU.

    Raises:
        ValueError: the device type is not "cuda" or "cpu".
        TypeError: the argument is not a device.
    """
    if device is None:
        return None
    try:
        given = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except (RuntimeError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise TypeError(
            f"{device = } is not a device ({reason}). Remedy: 'cuda', 'cuda:1', a torch.device, "
            "or None for the CPU"
        ) from error
    if given.type not in ("cuda", "cpu"):
        raise ValueError(
            f"device={str(device)!r} is not supported: images are decoded on CUDA GPUs, or on the "
            "CPU. Remedy: device='cuda', or device=None and batch.to() in your loop"
        )
    return given if given.type == "cuda" else None


def check_image_transform(dataset: Any, transform: Any, *, is_source: bool, recipes: Any) -> None:
    """Refuse transforms that do not fit the dataset's samples.

    Args:
        transform: as :func:`~stateful_gpu_loader.engine.plan.as_transform` returns it.
        is_source: whether the transform gets images as tensors.
        recipes: the transform, if it consists only of recipes.

    Raises:
        TypeError: recipes for an ImageFolder, or ToTensor for images that are tensors already.
    """
    if not is_source:
        inner: Any = dataset.dataset if type(dataset) is Subset else dataset
        if recipes is not None and transform is not None and _gives_pairs(inner):
            raise TypeError(
                f"recipes apply to the images of a source, but {type(inner).__name__} returns "
                "samples of a PIL image and a label. Remedy: replace it by "
                f"FolderSource({str(inner.root)!r}), which has the same classes and order; or give "
                "the recipes, after torchvision.transforms.v2.PILToTensor(), to "
                f"{type(inner).__name__}(transform=)"
            )
        return
    for step in _steps(transform):
        remedy = remedy_for(step)
        if remedy is not None:
            raise TypeError(
                f"transform has {step!r}, which converts PIL images to tensors, but a source's "
                f"images are tensors already, uint8 [3, H, W]. Remedy: {remedy}"
            )


def _gives_pairs(dataset: Any) -> bool:
    """Whether the samples are torchvision ImageFolder's: a PIL image and a label."""
    from torchvision.datasets import DatasetFolder

    return getattr(type(dataset), "__getitem__", None) is DatasetFolder.__getitem__


def _steps(transform: Any) -> Iterator[Any]:
    """Yield a transform and, recursively, its parts."""
    yield transform
    parts = getattr(transform, "transforms", ())
    for part in parts if isinstance(parts, (list, tuple)) else ():
        yield from _steps(part)


def check_division(is_divisible: bool, num_replicas: int | str | None) -> None:
    """Refuse ``num_replicas`` for a user's sampler or iterable dataset, which must divide itself.

    Args:
        is_divisible: whether the loader has its own order, or lanes, to divide.

    Raises:
        ValueError: ``num_replicas`` is given, and would be ignored.
    """
    if not is_divisible and num_replicas is not None:
        raise ValueError(
            f"{num_replicas = } divides the loader's own order, but this loader iterates your "
            "sampler or an iterable dataset, which must divide itself. Remedy: leave out "
            "num_replicas and rank, or the sampler; or make the dataset a ShardedDataset"
        )


def check_targets(
    config: LoaderConfig, source: Source, transform: Any, recipes: Compose | None
) -> None:
    """Refuse transforms and batches that do not fit a dataset of boxes or masks.

    Transforms that move pixels must move the targets, too, and torch's default collate function
    cannot stack targets with different numbers of objects.

    Args:
        source: the dataset, or its adapter.
        transform, recipes: as for :func:`check_image_transform`.

    Raises:
        ValueError: the transform's motion is unknown, or the targets of a batch could not be
            stacked.
    """
    name = type(config.dataset).__name__
    refused = transform if recipes is None else recipes.immovable()
    if refused is not None:
        raise ValueError(
            f"{name} has boxes or masks, and it is not known where "
            f"{describe(refused)} moves them: they would stay while the pixels move. "
            "Remedy: other recipes of stateful_gpu_loader.transforms, or the transform in a "
            "collate_fn, which gets image and target"
        )
    counts = source._object_counts()
    is_stacked = config.collation[0] is default_collate and config.samples_a_batch not in (None, 1)
    if counts is None or not is_stacked:
        return
    other = np.flatnonzero(counts != counts[0])
    if len(other):
        raise ValueError(
            f"the targets of {name} differ in their number of objects, which is "
            f"{counts[0]} at index 0 and {counts[other[0]]} at index {other[0]}: default_collate "
            "cannot stack them. Remedy: collate_fn=ragged_collate, which leaves targets in a list"
        )


def check_scaled_decoding(
    config: LoaderConfig, source: Source | None, recipes: Compose | None, *, by_gpu: bool
) -> None:
    """Refuse ``scaled_decoding=True`` where no recipes on a CPU shrink decoded images.

    Args:
        source: the dataset, or its adapter; None if it holds no encoded images.
        recipes: the transform, if it consists only of recipes.
        by_gpu: whether a GPU decodes.

    Raises:
        ValueError: ``scaled_decoding`` would be ignored.
    """
    name = type(config.dataset).__name__
    if source is None:
        obstacle = f"{name} is not a source of encoded images and decodes them itself"
        remedy = "a Source such as FolderSource(root), or scale in the dataset's own code"
    elif source.makes_pixels:
        obstacle = f"{name} returns pixels that were decoded earlier"
        remedy = "leave it out, or PreparedSource(..., scaled_decoding=True) of encoded images"
    elif recipes is None:
        obstacle = f"it is not known what size {describe(config.transform)} needs"
        remedy = "recipes of stateful_gpu_loader.transforms as transform"
    elif by_gpu:
        obstacle = f"device={str(config.device)!r} decodes, and GPUs decode whole images"
        remedy = "device=None, or a collate_fn, so that the CPUs decode"
    else:
        return
    raise ValueError(f"scaled_decoding=True has no effect: {obstacle}. Remedy: {remedy}")


def check_accept(accept: Any) -> None:
    is_collection = isinstance(accept, Collection) and not isinstance(accept, str)
    if not is_collection or set(accept) - ACCEPTABLE:
        raise ValueError(f"{accept = } must be a collection of names among {sorted(ACCEPTABLE)}")
