"""Ranks: their number from torch.distributed, and ranks with the same augmentations."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed
from torch.utils.data import (
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    get_worker_info,
)

from stateful_gpu_loader import (
    DistributedShuffledSampler,
    ShuffledSampler,
    StatefulGPULoader,
    StateMismatch,
    merge_state_dicts,
)
from tests.conformance import copy_of, loaded, same, through_json
from tests.map_datasets import Indices, Noisy
from tests.rank_processes import on_ranks
from tests.user_objects import InBatches

NUM_SAMPLES, GLOBAL_BATCH = 48, 8


def loader_of(num_replicas: int) -> StatefulGPULoader[torch.Tensor]:
    return StatefulGPULoader(
        Indices(NUM_SAMPLES),
        batch_size=GLOBAL_BATCH // num_replicas,
        shuffle=True,
        num_replicas="auto",
    )


def serve(rank: int, folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    """Return a rank's epoch, and what it delivers from a state."""
    torch.distributed.destroy_process_group()
    loader, resumed = loader_of(2), loader_of(2)  # before the process group exists, as in scripts
    torch.distributed.init_process_group(
        "gloo", f"file://{folder}/meeting", world_size=2, rank=rank
    )
    batches, states = [], [loader.state_dict()]
    for batch in loader:
        batches.append(batch.tolist())
        states.append(loader.state_dict())
    resumed.load_state_dict(state)
    rest = [batch.tolist() for batch in resumed]
    return {"batches": batches, "states": states, "length": len(loader), "rest": rest}


def test_ranks_share_one_order_and_one_state(tmp_path: Path) -> None:
    """Two ranks, a single process from the state of either, and two ranks from its state."""
    alone = loader_of(1)
    state = through_json({**alone.state_dict(), "position": 3 * GLOBAL_BATCH})
    wanted = [sorted(batch.tolist()) for batch in alone]
    ranks = on_ranks(serve, 2, tmp_path, state)
    assert ranks[0]["states"] == ranks[1]["states"]
    assert [rank["length"] for rank in ranks] == [6, 6]
    together, rest = (
        [sorted(a + b) for a, b in zip(ranks[0][name], ranks[1][name], strict=True)]
        for name in ("batches", "rest")
    )
    assert sorted(index for batch in together for index in batch) == list(range(NUM_SAMPLES))
    assert together == wanted
    assert rest == wanted[3:]
    resumed = loaded(loader_of(1), ranks[1]["states"][2])
    assert [sorted(batch.tolist()) for batch in resumed] == together[2:]


def serve_until_killed(rank: int, folder: Path) -> None:
    """Save after every batch, until all ranks are killed in the fourth batch."""
    loader = loader_of(2)
    for step, batch in enumerate(loader):
        if step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        seen = folder / f"{step}-{rank}.json"
        seen.write_text(json.dumps({"batch": batch.tolist(), "state": loader.state_dict()}))


def test_a_killed_job_resumes_exactly(tmp_path: Path) -> None:
    """Both ranks get SIGKILL. One rank finishes what an uninterrupted job would have read."""
    on_ranks(serve_until_killed, 2, tmp_path, killed=True)
    wanted = [sorted(batch.tolist()) for batch in loader_of(1)]
    saved = [json.loads((tmp_path / f"2-{rank}.json").read_text()) for rank in range(2)]
    assert sorted(saved[0]["batch"] + saved[1]["batch"]) == wanted[2]
    alone = loaded(loader_of(1), saved[0]["state"])
    assert [sorted(batch.tolist()) for batch in alone] == wanted[3:]


# Ranks of one tensor- or pipeline-parallel group work on one batch, so they need the same pixels.


N = 12


class Divided(Sampler[int]):
    """Every n-th index, with the attributes of DistributedSampler."""

    def __init__(self, num_replicas: int, rank: int) -> None:
        self.num_replicas, self.rank = num_replicas, rank

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.rank, N, self.num_replicas))

    def __len__(self) -> int:
        return len(range(self.rank, N, self.num_replicas))


class DividedBatches(Divided):
    def __iter__(self) -> Iterator[Any]:
        indices = list(super().__iter__())
        return (indices[place : place + 2] for place in range(0, len(indices), 2))


class DividedItems(Noisy, IterableDataset[Any]):
    def __init__(self, num_replicas: int, rank: int) -> None:
        super().__init__(N)
        self.num_replicas, self.rank = num_replicas, rank

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(self.rank, N, self.num_replicas))


def loaders_of(num_replicas: int, rank: int) -> list[StatefulGPULoader[Any]]:
    return [
        StatefulGPULoader(Noisy(N), batch_size=2, seed=5, sampler=Divided(num_replicas, rank)),
        StatefulGPULoader(Noisy(N), seed=5, batch_sampler=DividedBatches(num_replicas, rank)),
        StatefulGPULoader(DividedItems(num_replicas, rank), batch_size=2, seed=5),
    ]


def delivered(num_replicas: int, rank: int) -> list[list[Any]]:
    return [[copy_of(batch) for batch in loader] for loader in loaders_of(num_replicas, rank)]


def serve_group(rank: int, group_size: int, num_replicas: int) -> list[list[Any]]:
    return delivered(num_replicas, rank // group_size)


def test_ranks_of_one_group_see_the_same_pixels() -> None:
    """Four processes in two groups of two, each like a single process of its group's rank."""
    served = on_ranks(serve_group, 4, 2, 2)
    for rank in range(4):
        assert same(served[rank], delivered(2, rank // 2)), rank
    for one, other in zip(served[0], served[2], strict=True):
        assert not same([batch["torch"] for batch in one], [batch["torch"] for batch in other])


class Whole(Divided):
    """All indices, whatever its attributes say."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(N))

    def __len__(self) -> int:
        return N


def test_ranks_of_numpy_ints_divide_the_order_of_a_given_sampler() -> None:
    """Otherwise each rank would deliver the whole dataset."""
    shares = [
        StatefulGPULoader(
            Indices(8),
            sampler=ShuffledSampler(Indices(8), seed=4),
            num_replicas=np.int64(2),  # type: ignore[arg-type]
            rank=np.int64(rank),  # type: ignore[arg-type]
        )
        for rank in range(2)
    ]
    assert sorted(int(batch) for share in shares for batch in share) == list(range(8))
    assert json.loads(json.dumps(shares[1].state_dict())) == shares[0].state_dict()


@pytest.mark.parametrize("ranks", [(1, 3), (2.5, 0), (None, None), (True, False), ("2", "0")])
def test_attributes_that_are_not_ranks_are_ignored(ranks: tuple[Any, Any]) -> None:
    """Such an attribute may mean something else."""
    loader = StatefulGPULoader(Noisy(N), batch_size=2, seed=5, sampler=Whole(*ranks))
    assert same([copy_of(batch) for batch in loader], delivered(1, 0)[0])


class Joining(Whole):
    """Its rank is that of a process group that does not exist yet."""

    @property
    def num_replicas(self) -> int:
        raise RuntimeError("the process group is not initialized")

    @num_replicas.setter
    def num_replicas(self, value: int) -> None: ...


def test_a_rank_that_is_not_known_yet_is_ignored() -> None:
    """Reading the rank must not break a loader that works."""
    loader = StatefulGPULoader(Noisy(N), batch_size=2, seed=5, sampler=Joining(1, 0))
    assert same([copy_of(batch) for batch in loader], delivered(1, 0)[0])


# Scripts that seed torch by rank, and save rank 0's state.


def seeded_by_rank(rank: int, kind: str) -> StatefulGPULoader[Any]:
    torch.manual_seed(100 + rank)
    arguments: dict[str, Any] = {"batch_size": 2}
    if kind == "distributed sampler":
        arguments["sampler"] = DistributedSampler(range(N))
    elif kind == "in a batch sampler":
        arguments = {"batch_sampler": InBatches(DistributedSampler(range(N)), (2, 1))}
    elif kind == "names its ranks":
        arguments["sampler"] = Divided(2, rank)
    elif kind == "the package's own":
        arguments["sampler"] = DistributedShuffledSampler(range(N), 2, rank)
    elif kind == "an iterable":
        return StatefulGPULoader(Shards(), batch_size=2)
    elif kind == "undivided":
        arguments["shuffle"] = True
    elif kind == "torch's random sampler":
        arguments["sampler"] = RandomSampler(range(N))
    return StatefulGPULoader(Noisy(N), **arguments)


class Shards(Noisy, IterableDataset[Any]):
    """Every rank reads all of it."""

    def __init__(self) -> None:
        super().__init__(N)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(N))


class Resampled(IterableDataset[Any]):
    """Draws shards by the worker's seed."""

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        assert worker is not None
        return iter([worker.seed])


DIVIDED = ("distributed sampler", "in a batch sampler", "names its ranks", "the package's own")
DRAWN = ("undivided", "torch's random sampler")


def interrupted_by_rank(rank: int, kind: str) -> tuple[Any, Any, Any]:
    """Return a rank's epoch, its state after two batches, and the rest from rank 0's state."""
    loader = seeded_by_rank(rank, kind)
    batches = iter(loader)
    epoch = [copy_of(next(batches)), copy_of(next(batches))]
    state = loader.state_dict()
    epoch += [copy_of(batch) for batch in batches]
    states: list[Any] = [None, None]
    torch.distributed.all_gather_object(states, state)
    resumed = seeded_by_rank(rank, kind)
    try:
        resumed.load_state_dict(through_json(states[0]))
        rest: Any = [copy_of(batch) for batch in resumed]
    except StateMismatch as refused:
        rest = refused.field, str(refused)
    return epoch, state, rest


def served_by_rank(rank: int) -> dict[str, Any]:
    """Return everything that these tests need of two ranks, which take a second to start."""
    plain = StatefulGPULoader(Noisy(N), batch_size=2, seed=5, sampler=range(N))
    return {
        "unnamed": [copy_of(batch) for batch in plain],
        "seeds": [int(seed) for seed in StatefulGPULoader(Resampled(), num_workers=2, seed=5)],
        **{kind: interrupted_by_rank(rank, kind) for kind in (*DIVIDED, *DRAWN, "an iterable")},
    }


@pytest.fixture(scope="module")
def served() -> list[dict[str, Any]]:
    return on_ranks(served_by_rank, 2)


def test_samplers_without_ranks_are_distinguished_by_process(served: Any) -> None:
    """The same index has other draws on another rank."""
    one, other = (of_rank["unnamed"] for of_rank in served)
    assert same([batch["index"] for batch in one], [batch["index"] for batch in other])
    assert not any(
        same(ours["torch"], theirs["torch"]) for ours, theirs in zip(one, other, strict=True)
    )


def test_workers_of_different_ranks_have_different_seeds(served: Any) -> None:
    """A5: ranks that choose shards by ``get_worker_info().seed`` choose different ones."""
    assert len({seed for of_rank in served for seed in of_rank["seeds"]}) == 4


@pytest.mark.parametrize("kind", DIVIDED)
def test_ranks_that_divide_the_data_have_one_seed_whatever_torch_was_seeded_with(
    kind: str, served: Any
) -> None:
    """A12, B6: rank 0's state restores the augmentations of every rank."""
    for epoch, state, rest in (of_rank[kind] for of_rank in served):
        assert state["seed"] == 0
        assert same(rest, epoch[2:])


def test_an_iterable_has_one_seed_and_draws_by_rank(served: Any) -> None:
    """A14: its digest distinguishes the ranks."""
    (epoch, state, rest), (other, others, refusal) = (each["an iterable"] for each in served)
    assert state["seed"] == others["seed"] == 0
    assert same(rest, epoch[2:])
    assert not same([batch["torch"] for batch in epoch], [batch["torch"] for batch in other])
    assert refusal[0] == "iterable"


@pytest.mark.parametrize("kind", DRAWN)
def test_a_seed_that_each_rank_drew_is_refused_on_another_rank(kind: str, served: Any) -> None:
    """A12: every rank shuffles by its own generator, like DataLoader, and the error says so."""
    (epoch, state, rest), (other, others, refusal) = (of_rank[kind] for of_rank in served)
    assert state["seed"] != others["seed"]
    assert not same([batch["index"] for batch in epoch], [batch["index"] for batch in other])
    assert same(rest, epoch[2:])
    assert refusal[0] == "seed"
    assert "rank 0 of 2" in refusal[1]
    with pytest.raises(StateMismatch) as refused:
        merge_state_dicts([state, others])
    assert refused.value.field == "seed"


def resumed_with_a_drawn_seed(rank: int, states: list[Any]) -> list[Any]:
    """Load the rank's own state, then the other rank's, with the difference accepted."""
    own, other = seeded_by_rank(rank, "undivided"), seeded_by_rank(rank, "undivided")
    own.load_state_dict(states[rank])
    other.load_state_dict(states[1 - rank], accept={"seed"})
    again = loaded(seeded_by_rank(rank, "undivided"), other.state_dict())
    return [[copy_of(batch) for batch in loader] for loader in (own, other, again)]


def test_each_rank_resumes_from_its_own_state_and_from_an_accepted_one(served: Any) -> None:
    """A single process takes any rank's state."""
    runs = [of_rank["undivided"] for of_rank in served]
    states = [state for _, state, _ in runs]
    for rank, (own, other, again) in enumerate(on_ranks(resumed_with_a_drawn_seed, 2, states)):
        assert same(own, runs[rank][0][2:])
        assert same(other, runs[1 - rank][0][2:])
        assert same(again, other)
    for epoch, state, _ in runs:
        alone = loaded(seeded_by_rank(7, "undivided"), state)
        assert same([copy_of(batch) for batch in alone], epoch[2:])
