"""Rebuilds an undivided loader as the loader of one rank, from its public attributes."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from torch.utils.data import DistributedSampler

from stateful_gpu_loader.datasets.sharded import ShardedDataset
from stateful_gpu_loader.loader import StatefulGPULoader
from stateful_gpu_loader.samplers import DistributedShuffledSampler, is_map, order_of

_Loader = TypeVar("_Loader", bound=StatefulGPULoader[Any])


def divided(loader: _Loader, *, num_replicas: int, rank: int) -> _Loader:
    """Return the loader if it is already divided among ranks, else one like it for this rank.

    A loader counts as divided if it has a number of ranks, a DistributedSampler, or the user's
    iterable dataset, which must divide itself. The new loader takes over a loaded state and a set
    epoch.

    Args:
        loader: a loader with ``num_replicas=None`` or ``"auto"``.
        num_replicas: number of ranks that get different samples.
        rank: this rank.

    Raises:
        ValueError: the user's sampler would give every rank the same samples.
        TypeError: the loader is of a subclass whose constructor cannot be called again.
        StateMismatch: the loaded state does not fit this number of ranks.

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
            "Remedy: a sampler of this package, which the loader divides by num_replicas= and "
            "rank=; or a DistributedSampler, of which one that divides itself can be a subclass"
        )
    arguments = _arguments_of(loader, {"num_replicas": num_replicas, "rank": rank})
    # The loader made this sampler itself.
    stands_in = in_lanes or bool(loader.shuffle) or _is_stand_in(loader)
    arguments |= {
        "sampler": None if stands_in else loader.sampler,
        "shuffle": loader.shuffle if stands_in else None,
        "batch_sampler": None,
        "num_replicas": num_replicas,
        "rank": rank,
    }
    rank_loader: _Loader = _built(type(loader), arguments)
    _carry_over(loader, rank_loader)
    return rank_loader


def was_loaded(loader: StatefulGPULoader[Any]) -> bool:
    """Whether a loaded state must be taken over.

    >>> loader = StatefulGPULoader(range(8))
    >>> was_loaded(loader)
    False
    >>> loader.load_state_dict(loader.state_dict())
    >>> was_loaded(loader)
    True
    """
    return bool(loader._engine.passes.generation > 0)


def check_divides_itself(loader: StatefulGPULoader[Any], num_replicas: int) -> None:
    """Check that an iterable dataset that several processes read divides itself among them.

    Otherwise the trainer would divide it, and could not resume.

    Raises:
        ValueError: the dataset has no attribute ``num_replicas``.

    >>> check_divides_itself(StatefulGPULoader(range(8)), num_replicas=2)
    """
    dataset = loader.dataset
    if num_replicas == 1 or is_map(dataset) or isinstance(dataset, ShardedDataset):
        return
    if getattr(dataset, "num_replicas", None) is None:
        raise ValueError(
            f"{num_replicas} processes, each of which would get all samples of the "
            f"{type(dataset).__name__}. Remedy: make it a ShardedDataset; or, if it divides itself "
            "by rank, let it say so: dataset.num_replicas and dataset.rank (num_replicas= and "
            "rank= of the loader are for a ShardedDataset)"
        )


def _is_divided_by_its_sampler(loader: StatefulGPULoader[Any]) -> bool:
    samplers = (loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    return loader.num_replicas is None and any(
        isinstance(sampler, DistributedSampler) for sampler in samplers
    )


def _is_stand_in(loader: StatefulGPULoader[Any]) -> bool:
    return loader.num_replicas == "auto" and type(loader.sampler) is DistributedShuffledSampler


def _carry_over(loader: StatefulGPULoader[Any], rank_loader: StatefulGPULoader[Any]) -> None:
    """Give the new loader the loaded state or the set epoch; a seed of None stays undecided."""
    loader._engine.take_requested_epoch()
    epoch = loader._engine.passes.address().epoch  # state_dict() would settle the seed
    if was_loaded(loader):
        rank_loader.load_state_dict(loader.state_dict())
    elif epoch:
        rank_loader.set_epoch(epoch)


def _built(kind: Any, arguments: dict[str, Any]) -> Any:
    parameters = inspect.signature(kind).parameters
    lacking = [name for name in ("num_replicas", "rank") if name not in parameters]
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    if lacking and not takes_all:
        raise TypeError(
            f"{kind.__name__} cannot be built again as one rank's: its constructor takes no "
            f"{' and no '.join(lacking)}. {_remedy(arguments)}"
        )
    return kind(**{key: arguments[key] for key in arguments if takes_all or key in parameters})


def _arguments_of(loader: StatefulGPULoader[Any], ranks: dict[str, int]) -> dict[str, Any]:
    """Return all arguments of the loader, which it keeps as attributes of the same names."""
    parameters = dict(inspect.signature(type(loader)).parameters)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        parameters |= inspect.signature(StatefulGPULoader).parameters
    names = [
        name
        for name, parameter in parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    lacking = [name for name in names if not hasattr(loader, name)]
    if lacking:
        raise TypeError(
            f"{type(loader).__name__} cannot be built again as one rank's: its constructor takes "
            f"{', '.join(lacking)}, and it has no attribute of that name. {_remedy(ranks)}"
        )
    return {name: getattr(loader, name) for name in names}


def _remedy(ranks: dict[str, Any]) -> str:
    return (
        "Remedy: keep each argument as an attribute of the same name, and take **kwargs for "
        "those of StatefulGPULoader; or divide the loader yourself, "
        f"num_replicas={ranks['num_replicas']}, rank={ranks['rank']} on this rank"
    )
