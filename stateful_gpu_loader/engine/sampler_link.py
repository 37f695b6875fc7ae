"""Values that a loader and its sampler share: ranks, the seed and the epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stateful_gpu_loader.engine.config import LoaderConfig
from stateful_gpu_loader.engine.schedules.positions import Division
from stateful_gpu_loader.engine.schedules.sampler_snapshot import samplers_in
from stateful_gpu_loader.engine.torch_names import size_and_rank
from stateful_gpu_loader.samplers import OWN_SAMPLERS, DistributedShuffledSampler, is_map
from stateful_gpu_loader.state.schema import as_int


def ranks_of(config: LoaderConfig) -> tuple[int, int]:
    """Return the number of ranks that share the loader's order or lanes, and this rank.

    ``num_replicas="auto"`` takes both from torch.distributed.
    """
    sampler, given = config.sampler, config.num_replicas
    ranks = 1, 0
    if isinstance(sampler, DistributedShuffledSampler):
        ranks = int(sampler.num_replicas), int(sampler.rank)
    elif given is not None and given != "auto":
        ranks = int(given), int(config.rank or 0)
    return size_and_rank(ranks) if given == "auto" else ranks


def key_ranks(divided: Any) -> tuple[int, int]:
    """Return the number of ranks and this rank, by which random augmentations differ.

    A user's sampler or iterable dataset divides itself. Its attributes ``num_replicas`` and
    ``rank`` are used, like DistributedSampler's, because ranks that share a batch (tensor or
    pipeline parallel) must see the same pixels. Otherwise each process of torch.distributed is a
    rank.
    """
    return _own_ranks(divided) or size_and_rank()


def _own_ranks(divided: Any) -> tuple[int, int] | None:
    """Return the ``num_replicas`` and ``rank`` of a sampler or dataset; None if it has none."""
    try:
        num_replicas = as_int("num_replicas", getattr(divided, "num_replicas", None))
        rank = as_int("rank", getattr(divided, "rank", None))
    except (TypeError, RuntimeError):
        # The attributes are missing, or cannot read torch.distributed yet.
        return None
    return (num_replicas, rank) if 0 <= rank < num_replicas else None


def seed_of(sampler: Any) -> int | None:
    """Return the seed that was given to a sampler of this package."""
    seed: int | None = sampler.seed if isinstance(sampler, OWN_SAMPLERS) else None
    return seed


def pass_on_seed(sampler: Any, seed: int) -> None:
    """Give the loader's seed to this package's sampler inside another sampler."""
    if isinstance(sampler, OWN_SAMPLERS) and sampler.seed is None:
        sampler.seed = seed


def divides_data(config: LoaderConfig) -> bool:
    """Return whether ranks divide the data, and so share the default seed 0.

    An iterable dataset in a process group counts, too.
    """
    if config.num_replicas is not None:
        return True
    if not is_map(config.dataset) and size_and_rank()[0] > 1:
        return True
    samplers = (config.own_sampler, config.sampler)
    within = [inner for sampler in samplers for inner in samplers_in(sampler)]
    found = map(_own_ranks, (config.dataset, *samplers, *within))
    return any(ranks is not None and ranks[0] > 1 for ranks in found)


def rank_in_words() -> str | None:
    """Return this process's rank in torch.distributed, or None if it is the only one.

    >>> rank_in_words() is None
    True
    """
    num_replicas, rank = size_and_rank()
    return f"rank {rank} of {num_replicas}" if num_replicas > 1 else None


def pass_on_requested_epoch(sampler: Any, request: Callable[[int], None]) -> None:
    """Call ``request`` with the epoch of ``sampler.set_epoch()``, if that was called."""
    if isinstance(sampler, OWN_SAMPLERS) and sampler.requested_epoch is not None:
        request(sampler.requested_epoch)
        sampler.requested_epoch = None


def follow_pass(sampler: Any, *, seed: int, epoch: int, division: Division) -> None:
    """Let the sampler yield this pass's indices, if it is iterated by itself.

    Raises:
        ValueError: a state was loaded into the sampler, from which the loader cannot resume.
    """
    if not isinstance(sampler, OWN_SAMPLERS):
        return
    if sampler.resume_at is not None:
        raise ValueError(
            f"a state was loaded into the loader's sampler, {sampler.state_dict()}, but its "
            "position is valid only for the sampler itself. Remedy: load the loader's state into "
            "the loader"
        )
    sampler.seed, sampler.epoch = seed, epoch
    if isinstance(sampler, DistributedShuffledSampler):
        sampler.set_ranks(division.num_replicas, division.rank)
