"""An undivided loader built again as one rank's, by its public attributes."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from torch.utils.data import DistributedSampler

from stateful_gpu_loader.loader import StatefulGPULoader
from stateful_gpu_loader.samplers import DistributedShuffledSampler, is_map, order_of
from stateful_gpu_loader.shards.sharded_dataset import ShardedDataset

_Loader = TypeVar("_Loader", bound=StatefulGPULoader[Any])


def divided(loader: _Loader, *, num_replicas: int, rank: int) -> _Loader:
    """The loader, or, if nobody has divided it yet, one like it that is this rank's.

    Numbers of ranks that were given stay as they are, and so does a DistributedSampler or an
    iterable dataset of the user's, which divide themselves.

    Args:
        loader: with ``num_replicas=None`` or ``"auto"``.
        num_replicas: the ranks that get different samples.
        rank: this one.

    Raises:
        ValueError: a sampler of the user's would give every rank the same samples.

    >>> loader = StatefulGPULoader(range(8), batch_size=2, shuffle=True, seed=1)
    >>> both = [divided(loader, num_replicas=2, rank=rank) for rank in (0, 1)]
    >>> sorted(torch_batch for rank in both for batch in rank for torch_batch in batch.tolist())
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    if isinstance(loader.num_replicas, int) or (loader.num_replicas is None and num_replicas == 1):
        return loader
    in_lanes = isinstance(loader.dataset, ShardedDataset)
    if not in_lanes and (not is_map(loader.dataset) or _is_divided_by_its_sampler(loader)):
        return loader
    has_own_batches = loader.batch_size is None and loader.batch_sampler is not None
    if not in_lanes and (has_own_batches or order_of(loader.sampler) is None):
        name = type(loader.batch_sampler if has_own_batches else loader.sampler).__name__
        raise ValueError(
            f"{num_replicas = }, and the loader's {name} would give each rank the same samples. "
            "Remedy: a DistributedSampler, or a sampler of this package; or, if it divides "
            "itself, use_distributed_sampler=False, where the trainer has that"
        )
    arguments = _arguments_of(loader)
    # A sampler that stands in for a missing one is left out, for there to be one for these ranks.
    stands_in = in_lanes or bool(loader.shuffle) or _is_stand_in(loader)
    arguments |= {
        "sampler": None if stands_in else loader.sampler,
        "shuffle": loader.shuffle if stands_in else None,
        "batch_sampler": None,
        "num_replicas": num_replicas,
        "rank": rank,
    }
    return type(loader)(**arguments)


def check_divides_itself(loader: Any, num_replicas: int) -> None:
    """An iterable dataset that several processes read must say that it divides itself: the trainer
    would divide it otherwise, which nobody can resume.

    Raises:
        ValueError: it does not say so.

    >>> check_divides_itself(StatefulGPULoader(range(8)), num_replicas=2)
    """
    dataset = loader.dataset
    if num_replicas == 1 or is_map(dataset) or isinstance(dataset, ShardedDataset):
        return
    if getattr(dataset, "num_replicas", None) is None:
        raise ValueError(
            f"{num_replicas} processes, of which each would get all samples of the "
            f"{type(dataset).__name__}. Remedy: make it a ShardedDataset; or, if it divides itself "
            "by rank, let it say so: dataset.num_replicas and dataset.rank"
        )


def _is_divided_by_its_sampler(loader: Any) -> bool:
    samplers = (loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    return loader.num_replicas is None and any(
        isinstance(sampler, DistributedSampler) for sampler in samplers
    )


def _is_stand_in(loader: Any) -> bool:
    return loader.num_replicas == "auto" and type(loader.sampler) is DistributedShuffledSampler


def _arguments_of(loader: Any) -> dict[str, Any]:
    """Law 8: every argument is an attribute of the same name."""
    parameters = dict(inspect.signature(type(loader)).parameters)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        parameters |= inspect.signature(StatefulGPULoader).parameters
    return {
        name: getattr(loader, name)
        for name, parameter in parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
