"""Checks of the loader's arguments."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, default_collate

from stateful_gpu_loader.datasets import CallableSource
from stateful_gpu_loader.datasets.sharded import ShardedDataset
from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.decoders import DECODER_NAMES
from stateful_gpu_loader.engine.makers.bad_sample_policy import ON_BAD_SAMPLE
from stateful_gpu_loader.engine.torch_names import size_and_rank
from stateful_gpu_loader.engine.workers.cluster import RemoteWorkers
from stateful_gpu_loader.samplers import (
    OWN_SAMPLERS,
    DistributedShuffledSampler,
    default_sampler,
    is_map,
)
from stateful_gpu_loader.state.descriptions import describe
from stateful_gpu_loader.state.schema import ACCEPTABLE, as_int
from stateful_gpu_loader.transforms import Compose
from stateful_gpu_loader.transforms.compose import remedy_for

WORKER_TYPES = ("auto", "thread", "process", "ray")
"""What ``worker_type`` can be, besides options of workers on other machines."""

BOUNDARIES = ("empty", "next_epoch")
"""What ``on_epoch_boundary`` can be."""


def check_arguments(
    *,
    seed: Any,
    rank: Any,
    num_replicas: Any,
    prefetch_factor: Any,
    worker_type: Any,
    threads_per_process: Any,
    on_epoch_boundary: Any,
    decoder: Any,
    cpu_share: Any,
    on_bad_sample: Any,
    max_worker_restarts: Any,
    snapshot_every_n_steps: Any,
) -> None:
    """Check the arguments that torch does not check, or checks too late.

    Raises:
        ValueError, TypeError: one is out of range or of a wrong type.
    """
    _check_seed(seed)
    _check_ranks(rank, num_replicas)
    if prefetch_factor is not None and not _is_int_from(1, prefetch_factor):
        raise ValueError(f"{prefetch_factor = } must be a positive int or None")
    if not _is_int_from(1, threads_per_process):
        raise ValueError(f"{threads_per_process = } must be a positive int")
    if not isinstance(worker_type, RemoteWorkers):
        _check_choice("worker_type", worker_type, WORKER_TYPES)
    _check_choice("on_epoch_boundary", on_epoch_boundary, BOUNDARIES)
    _check_choice("decoder", decoder, DECODER_NAMES)
    if isinstance(cpu_share, bool) or not isinstance(cpu_share, (int, float)):
        raise TypeError(f"{cpu_share = } must be a number from 0 to 1")
    if not 0 <= cpu_share <= 1:
        raise ValueError(f"{cpu_share = } must be from 0 to 1")
    _check_choice("on_bad_sample", on_bad_sample, ON_BAD_SAMPLE)
    if not _is_int_from(0, max_worker_restarts):
        raise ValueError(f"{max_worker_restarts = } must be an int from 0")
    if snapshot_every_n_steps is not None and not _is_int_from(0, snapshot_every_n_steps):
        raise ValueError(f"{snapshot_every_n_steps = } must be an int from 0, or None")


def as_device(device: Any) -> torch.device | None:
    """Return the device of finished batches, or None for the CPU.

    Raises:
        ValueError: the device is of another kind than "cuda" and "cpu".
        TypeError: it names no device.
    """
    if device is None:
        return None
    try:
        given = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except (RuntimeError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise TypeError(
            f"{device = } names no device ({reason}). Remedy: 'cuda', 'cuda:1', a torch.device, "
            "or None for the CPU"
        ) from error
    if given.type not in ("cuda", "cpu"):
        raise ValueError(
            f"device={str(device)!r} is not supported: images are decoded on CUDA GPUs, or on the "
            "CPU. Remedy: device='cuda', or device=None and batch.to() in your loop"
        )
    return given if given.type == "cuda" else None


def _check_seed(seed: Any) -> None:
    if seed is not None and not -(2**63) <= as_int("seed", seed) < 2**64:
        raise ValueError(f"{seed = } must fit in 64 bits: -2**63 <= seed < 2**64")


def _check_ranks(rank: Any, num_replicas: Any) -> None:
    if num_replicas == "auto":
        if rank is not None:
            raise ValueError(f"num_replicas='auto' reads the rank too: leave out {rank = }")
        return
    if num_replicas is None:
        if rank is not None:
            raise ValueError(f"{rank = } needs num_replicas, the number of ranks")
        return
    if not _is_int_from(1, num_replicas):
        raise ValueError(f"{num_replicas = } must be a positive int, 'auto' or None")
    if not _is_int_from(0, rank) or rank >= num_replicas:
        raise ValueError(f"{rank = } must be an int with 0 <= rank < {num_replicas = }")


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, choices))}")


def check_shuffle(shuffle: Any) -> None:
    if shuffle not in (None, True, False):
        raise TypeError(f"{shuffle = } must be True, False or None")


def sampling_of(
    dataset: Any,
    *,
    shuffle: Any,
    sampler: Any,
    batch_sampler: Any,
    seed: int | None,
    num_replicas: int | str | None,
    rank: int | None,
    drop_last: bool,
) -> tuple[Any, Any]:
    """Return the loader's sampler, with a default for a missing one, and the ``shuffle`` for torch.

    Raises:
        ValueError, TypeError: the arguments contradict each other or the dataset.
    """
    if isinstance(sampler, OWN_SAMPLERS):
        check_own_sampler(
            sampler, seed=seed, num_replicas=num_replicas, rank=rank, drop_last=drop_last
        )
        return sampler, shuffle
    if isinstance(dataset, ShardedDataset):
        check_shuffle(shuffle)
        return sampler, None
    if isinstance(dataset, CallableSource) and shuffle:
        raise ValueError(
            f"{shuffle = }, and a CallableSource's function has the order. Remedy: shuffle in the "
            "function, by info.epoch_idx (order.Permutation needs no list), or make a map-style "
            "dataset of it"
        )
    if sampler is not None or batch_sampler is not None or not is_map(dataset):
        return sampler, shuffle
    check_shuffle(shuffle)
    chosen = default_sampler(
        dataset,
        shuffle=bool(shuffle),
        drop_last=drop_last,
        seed=seed,
        num_replicas=num_replicas,
        rank=rank,
    )
    return chosen, None


def check_dataset(dataset: Any) -> None:
    """Refuse a path as dataset: its text would be delivered letter by letter.

    Raises:
        TypeError: the dataset is a str or a Path.
    """
    if isinstance(dataset, (str, os.PathLike)):
        raise TypeError(
            f"{dataset = } is a path, and no dataset. Remedy: FolderSource({str(dataset)!r}) for "
            "a folder of images, a subfolder a class; docs/data.md has the sources for other files"
        )


def check_image_transform(dataset: Any, transform: Any, *, is_source: bool, recipes: Any) -> None:
    """Refuse transforms that do not fit what the dataset returns.

    Args:
        transform: as :func:`~stateful_gpu_loader.engine.plan.as_transform` gives it.
        is_source: whether the transform gets images as tensors.
        recipes: the transform, if it consists of recipes alone.

    Raises:
        TypeError: recipes for an ImageFolder, or ToTensor for images that are tensors already.
    """
    if not is_source:
        inner: Any = dataset.dataset if type(dataset) is Subset else dataset
        if recipes is not None and transform is not None and _gives_pairs(inner):
            raise TypeError(
                f"recipes apply to the images of a source, and {type(inner).__name__} gives "
                "samples of a PIL image and a label. Remedy: "
                f"FolderSource({str(inner.root)!r}), which has the same classes and order, in its "
                "place; or give the recipes, behind torchvision.transforms.v2.PILToTensor(), to "
                f"{type(inner).__name__}(transform=)"
            )
        return
    for step in _steps(transform):
        remedy = remedy_for(step)
        if remedy is not None:
            raise TypeError(
                f"transform has {step!r}, which makes tensors of PIL images, and a source's images "
                f"are tensors already, uint8 [3, H, W]. Remedy: {remedy}"
            )


def _gives_pairs(dataset: Any) -> bool:
    """Whether its samples are those of torchvision's ImageFolder: a PIL image and a label."""
    from torchvision.datasets import DatasetFolder

    return getattr(type(dataset), "__getitem__", None) is DatasetFolder.__getitem__


def _steps(transform: Any) -> Iterator[Any]:
    """Yield a transform and, recursively, those that it is composed of."""
    yield transform
    parts = getattr(transform, "transforms", ())
    for part in parts if isinstance(parts, (list, tuple)) else ():
        yield from _steps(part)


def check_calls(dataset: Any, batch_size: int | None) -> None:
    """Refuse a batch size where each call of the dataset's function makes a whole batch.

    Raises:
        ValueError: a batch size is given.
    """
    if isinstance(dataset, CallableSource) and dataset.batch and batch_size is not None:
        raise ValueError(
            f"{batch_size = }, and each call of this CallableSource makes a whole batch. "
            "Remedy: batch_size=None"
        )


def check_own_sampler(
    sampler: Any,
    *,
    seed: int | None,
    num_replicas: int | str | None,
    rank: int | None,
    drop_last: bool,
) -> None:
    """Refuse arguments of the loader that contradict its sampler, if that is one of this package.

    The seed may be given to either. Ranks are given to the loader, except with a
    :class:`DistributedShuffledSampler`, which has them itself.
    """
    told: list[tuple[str, Any, Any]] = [("seed", seed, sampler.seed)]
    if isinstance(sampler, DistributedShuffledSampler):
        told += [
            ("num_replicas", num_replicas, sampler.num_replicas),
            ("rank", rank, sampler.rank),
        ]
        if sampler.drop_last and not drop_last:
            told.append(("drop_last", drop_last, sampler.drop_last))
    for name, value, of_sampler in told:
        if value == "auto" and (sampler.num_replicas, sampler.rank) in ((1, 0), size_and_rank()):
            # This is a default sampler that the loader made itself, given to a loader that was
            # rebuilt.
            continue
        if value is not None and of_sampler is not None and value != of_sampler:
            raise ValueError(
                f"{name}={value!r} contradicts the sampler, which has {of_sampler!r}. Remedy: "
                "give it to the sampler alone, or leave the sampler out"
            )


def check_division(is_divisible: bool, num_replicas: int | str | None) -> None:
    """Refuse ``num_replicas`` for a sampler or an iterable of the user's, which divides itself.

    Args:
        is_divisible: whether the loader has the order, or lanes, to divide.

    Raises:
        ValueError: ``num_replicas`` is given, and would be ignored.
    """
    if not is_divisible and num_replicas is not None:
        raise ValueError(
            f"{num_replicas = } divides the loader's own order, and this loader iterates a "
            "sampler of yours or an iterable dataset, which divide themselves. Remedy: leave out "
            "num_replicas and rank, or the sampler; or make the dataset a ShardedDataset"
        )


def check_targets_move(dataset: Any, transform: Any, recipes: Compose | None) -> None:
    """Refuse transforms that move pixels but might not move boxes and masks with them.

    Args:
        dataset: whose targets contain coordinates in the image.
        transform: of the loader.
        recipes: the transform, if it consists of recipes alone.

    Raises:
        ValueError: it is not known how the transform moves coordinates.
    """
    refused = transform if recipes is None else recipes.immovable()
    if refused is not None:
        raise ValueError(
            f"{type(dataset).__name__} has boxes or masks, and it is not known where "
            f"{describe(refused)} moves them: they would stay while the pixels move. "
            "Remedy: recipes of stateful_gpu_loader.transforms (RandAugment and TrivialAugmentWide "
            "do not tell), or the transform in a collate_fn, which gets image and target"
        )


def check_targets_stack(
    dataset: Any, source: Source, collate_fn: Any, batch_size: int | None
) -> None:
    """Refuse torch's default collate function for targets of different numbers of objects.

    Args:
        source: the dataset, or its adapter.
        collate_fn: of the loader, or torch's default.
        batch_size: number of samples a batch; None if a batch sampler of the user's decides.

    Raises:
        ValueError: the targets of a batch could not be stacked.
    """
    counts = source._object_counts()
    if collate_fn is not default_collate or batch_size in (None, 1) or counts is None:
        return
    other = np.flatnonzero(counts != counts[0])
    if len(other):
        raise ValueError(
            f"the targets of {type(dataset).__name__} differ in their number of objects, which is "
            f"{counts[0]} at index 0 and {counts[other[0]]} at index {other[0]}: default_collate "
            "cannot stack them. Remedy: collate_fn=ragged_collate, which leaves targets in a list"
        )


def check_bad_sample_mode(on_bad_sample: str, *, is_iterable: bool) -> None:
    """Refuse to replace samples of an iterable, which has no index to take another one from.

    Raises:
        ValueError: ``"replace"`` for an iterable dataset.
    """
    if is_iterable and on_bad_sample == "replace":
        raise ValueError(
            f"{on_bad_sample = } takes another sample by its index, and an iterable dataset has "
            "none. Remedy: on_bad_sample='drop', which takes the iterator's next samples instead"
        )


def check_accept(accept: Any) -> None:
    is_collection = isinstance(accept, Collection) and not isinstance(accept, str)
    if not is_collection or set(accept) - ACCEPTABLE:
        raise ValueError(f"{accept = } must be a collection of names among {sorted(ACCEPTABLE)}")


def _is_int_from(lowest: int, value: Any) -> bool:
    try:
        return as_int("", value) >= lowest
    except TypeError:
        return False
