"""Connects a loader with a sampler of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stateful_gpu_loader.engine.config import LoaderConfig
from stateful_gpu_loader.engine.schedules.positions import Division
from stateful_gpu_loader.engine.world import size_and_rank
from stateful_gpu_loader.samplers import OWN_SAMPLERS, DistributedShuffledSampler


def division_of(config: LoaderConfig) -> Division:
    """Return batch size and ranks; ``"auto"`` takes the ranks from torch.distributed."""
    sampler, given = config.sampler, config.num_replicas
    ranks = 1, 0
    if isinstance(sampler, DistributedShuffledSampler):
        ranks = sampler.num_replicas, sampler.rank
    elif isinstance(given, int):
        ranks = given, config.rank or 0
    replicas, own_rank = size_and_rank(ranks) if given == "auto" else ranks
    return Division(
        batch_size=config.batch_size or 1,
        drop_last=config.drop_last,
        rank=int(own_rank),
        num_replicas=int(replicas),
    )


def seed_of(sampler: Any) -> int | None:
    """Return the seed that was given to a sampler of this package."""
    seed: int | None = sampler.seed if isinstance(sampler, OWN_SAMPLERS) else None
    return seed


def pass_on_requested_epoch(sampler: Any, request: Callable[[int], None]) -> None:
    """Call ``request`` with the epoch that ``sampler.set_epoch()`` was given, if it was called."""
    if isinstance(sampler, OWN_SAMPLERS) and sampler.requested_epoch is not None:
        request(sampler.requested_epoch)
        sampler.requested_epoch = None


def follow_pass(sampler: Any, *, seed: int, epoch: int, division: Division) -> None:
    """Make the sampler, if it is iterated by itself, yield what this pass delivers.

    Raises:
        ValueError: a state was loaded into the sampler, from which the loader cannot resume.
    """
    if not isinstance(sampler, OWN_SAMPLERS):
        return
    if sampler.resume_at is not None:
        raise ValueError(
            f"a state was loaded into the loader's sampler, {sampler.state_dict()}, whose "
            "position counts for the sampler alone. Remedy: load the loader's state into the "
            "loader"
        )
    sampler.seed, sampler.epoch = seed, epoch
    if isinstance(sampler, DistributedShuffledSampler):
        sampler.set_ranks(division.num_replicas, division.rank)
