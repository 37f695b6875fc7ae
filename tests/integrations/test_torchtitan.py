"""torchtitan's contract of a dataloader, on a mesh of data and tensor parallelism."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh

from stateful_gpu_loader import ShuffledSampler, StatefulGPULoader, gather_state_dict
from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.integrations.torchtitan import ParallelAwareLoader
from tests.integrations.dcp_jobs import Samples
from tests.rank_processes import on_ranks
from tests.trainer_data import RECIPES, photos, samples_of, sorted_samples, tars

GLOBAL_BATCH = 4
STEPS = 10
"""Steps of the whole run: more than the six of an epoch."""


def build_dataloader(dataset: Any, dp_world_size: int, dp_rank: int) -> ParallelAwareLoader:
    """Build the dataloader as torchtitan's trainer does."""
    is_map = hasattr(dataset, "__len__")
    sampler = ShuffledSampler(dataset, num_samples=STEPS * GLOBAL_BATCH) if is_map else None
    loader = StatefulGPULoader(
        dataset,
        batch_size=GLOBAL_BATCH // dp_world_size,
        sampler=sampler,
        shuffle=None if is_map else True,
        seed=5,
        transform=RECIPES,
        rank=dp_rank,
        num_replicas=dp_world_size,
    )
    return ParallelAwareLoader(loader, dp_rank, dp_world_size)


def train(
    rank: int, data: list[Any], tp: int, stop_at: int | None, load: Path | None, save: Path | None
) -> list[tuple[int, Samples, bool]]:
    """Run the steps of a trainer.

    Returns:
        The data-parallel rank, its batches, and whether the states of the group's ranks merge into
        one that all of them have.
    """
    mesh = init_device_mesh("cpu", (dist.get_world_size() // tp, tp), mesh_dim_names=("dp", "tp"))
    dp = mesh["dp"]
    found = []
    for number, dataset in enumerate(data):
        dataloader = build_dataloader(dataset, dp.size(), dp.get_local_rank())
        states = {"dataloader": dataloader}
        if load is not None:
            dcp.load(states, checkpoint_id=load / str(number))
        batches, seen = iter(dataloader), []
        for step, batch in enumerate(batches):
            seen.append(samples_of(batch))
            if step + 1 == stop_at:
                break
        if save is not None:
            dcp.save(states, checkpoint_id=save / str(number))
        merged = gather_state_dict(dataloader.loader.state_dict(), dp.get_group())
        of_all: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(of_all, merged)
        found.append((dp.get_local_rank(), seen, all(other == merged for other in of_all)))
    return found


def test_degrees_of_parallelism_change(tmp_path: Path) -> None:
    """2 x 2, 1 x 2, 4 x 1 processes of data and tensor parallelism: the batches of one process,
    the same in each tensor-parallel group.
    """
    data = [photos(tmp_path / "photos"), tars(tmp_path / "tars")]
    ((uninterrupted,),) = [on_ranks(train, 1, data, 1, None, None, None)]
    stages = [(4, 2, 3), (2, 2, 2), (4, 1, None)]
    came: list[list[Any]] = [[], []]
    for stage, (size, tp, steps) in enumerate(stages):
        load, save = (tmp_path / str(stage) if stage else None), tmp_path / str(stage + 1)
        ranks = on_ranks(train, size, data, tp, steps, load, save)
        for number in range(len(data)):
            of_rank: dict[int, Samples] = {}
            for rank in ranks:
                dp_rank, seen, merged = rank[number]
                assert of_rank.setdefault(dp_rank, seen) == seen, "ranks of one group"
                assert merged
            assert sorted(of_rank) == list(range(size // tp))
            came[number].append([of_rank[dp_rank] for dp_rank in sorted(of_rank)])
    steps_of_map = [sorted_samples(parts) for run in came[0] for parts in zip(*run, strict=True)]
    assert steps_of_map == [sorted(batch) for batch in uninterrupted[0][1]]
    assert len(steps_of_map) == STEPS
    of_lanes = [sample for run in came[1] for rank in run for batch in rank for sample in batch]
    assert sorted(of_lanes) == sorted_samples(uninterrupted[1][1])
    assert len(of_lanes) == 24


def test_the_contract() -> None:
    """torchtitan iterates it, and passes an empty state for none."""
    dataloader = build_dataloader_of_numbers()
    assert isinstance(dataloader, Stateful)
    assert len(dataloader) == 3
    state = dataloader.state_dict()
    assert {type(value) for value in state.values()} == {int, str}
    dataloader.load_state_dict({})
    assert [batch.tolist() for batch in dataloader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_the_state_of_torchtitan_s_own_dataloader_is_refused() -> None:
    """It is a pickle, which this package never reads."""
    with pytest.raises(StateMismatch) as error:
        build_dataloader_of_numbers().load_state_dict({"dp_rank_0": b"", "world_size": 1})
    assert error.value.field == "keys"


def test_a_rank_has_to_be_one() -> None:
    with pytest.raises(ValueError, match=r"dp_rank = 2 .*dp_world_size = 2"):
        ParallelAwareLoader(StatefulGPULoader(range(4)), 2, 2)


def build_dataloader_of_numbers() -> ParallelAwareLoader:
    return ParallelAwareLoader(StatefulGPULoader(range(10), 4, seed=1), 0, 1)
