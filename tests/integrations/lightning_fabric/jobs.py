"""Jobs of each rank in the tests of Fabric on several ranks."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lightning.fabric.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DistributedSampler

from stateful_gpu_loader import FolderSource, StatefulGPULoader, StateMismatch, TarShards
from stateful_gpu_loader.engine.torch_names import size_and_rank
from stateful_gpu_loader.integrations.fabric import setup_dataloaders
from tests.integrations.lightning_fabric.training import (
    END,
    ImagesOfRank,
    Record,
    adapted,
    built_in,
    interrupted_and_resumed,
    on_all_ranks,
    train,
)
from tests.trainer_data import image_loader, samples_of

GLOBAL_BATCH = 4
MIDDLE, END_OF_PASS, BETWEEN = (1, 3), (1, 6), (1, END)
"""Moments of epochs of six steps. Those of the first epoch are exact without any adapter."""


def dataset_of(folder: Path) -> FolderSource:
    paths = sorted((folder / "class_00").iterdir())
    return FolderSource.from_paths(paths, range(len(paths)))


def map_style(folder: Path, num_ranks: int, **arguments: Any) -> StatefulGPULoader[Any]:
    return image_loader(dataset_of(folder), batch_size=GLOBAL_BATCH // num_ranks, **arguments)


def in_lanes(folder: Path, num_ranks: int, **arguments: Any) -> StatefulGPULoader[Any]:
    shards = TarShards(sorted((folder / "tars").iterdir()), num_lanes=4)
    return image_loader(shards, batch_size=GLOBAL_BATCH // num_ranks, **arguments)


def under_torchs_sampler(folder: Path, num_ranks: int, rank: int) -> StatefulGPULoader[Any]:
    dataset = dataset_of(folder)
    sampler = DistributedSampler(dataset, num_ranks, rank, seed=3)
    batch_size = GLOBAL_BATCH // num_ranks
    return image_loader(dataset, batch_size=batch_size, shuffle=None, sampler=sampler)


def divided_by_itself(num_ranks: int, rank: int) -> StatefulGPULoader[Any]:
    return StatefulGPULoader(ImagesOfRank(24, rank, num_ranks), batch_size=2, seed=1)


@dataclass(frozen=True)
class Situation:
    """A job, and the moments at which it is interrupted."""

    set_up: Any
    make: Callable[[], Any]
    moments: tuple[tuple[int, int], ...] = (MIDDLE, BETWEEN)
    accumulate: int = 1


def compare(rank: int, num_ranks: int, folder: Path) -> dict[str, Any]:
    """Return whether each resumed run equals the uninterrupted one, by situation."""
    whole = partial(map_style, folder, num_ranks)
    auto = partial(whole, num_replicas="auto")
    in_order = partial(whole, shuffle=False)
    of_torch = partial(under_torchs_sampler, folder, num_ranks, rank)
    by_itself = partial(divided_by_itself, num_ranks, rank)
    situations = {
        "adapter, divided by it": Situation(adapted, whole, (MIDDLE, END_OF_PASS)),
        "adapter, auto": Situation(adapted, auto, (MIDDLE,)),
        "adapter, lanes": Situation(
            adapted, partial(in_lanes, folder, num_ranks), ((0, 2), BETWEEN)
        ),
        "adapter, torch's sampler": Situation(adapted, of_torch),
        "adapter, divided by itself": Situation(adapted, by_itself, (MIDDLE,)),
        "adapter, several batches a step": Situation(adapted, whole, ((1, 4),), accumulate=4),
        "built in, auto": Situation(built_in, auto, ((0, 2), MIDDLE)),
        "built in, auto, in order": Situation(built_in, partial(in_order, num_replicas="auto")),
        "built in, divided by Fabric": Situation(built_in, whole, ((0, 2), MIDDLE)),
        "built in, divided by Fabric, in order": Situation(built_in, in_order),
    }
    found: dict[str, Any] = {
        name: _outcome(partial(on_all_ranks, num_ranks), situation, folder / name)
        for name, situation in situations.items()
    }
    found["built in, lanes"] = _loads_rank_0s_lanes(num_ranks, folder)
    return found


def _outcome(make_fabric: Callable[[], Any], situation: Situation, path: Path) -> dict[str, Any]:
    set_up, make, accumulate = situation.set_up, situation.make, situation.accumulate
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        uninterrupted = train(make_fabric(), set_up, make(), accumulate=accumulate)
        exact = [
            interrupted_and_resumed(make_fabric, set_up, make, path, stop, accumulate=accumulate)
            == uninterrupted
            for stop in situation.moments
        ]
    texts = {str(one.message) for one in caught if "epoch" in str(one.message)}
    return {
        "uninterrupted": uninterrupted,
        "exact": all(exact),
        "each": exact,
        "warned": bool(texts),
    }


def _loads_rank_0s_lanes(num_ranks: int, folder: Path) -> str:
    fabric, path = on_all_ranks(num_ranks), folder / "rank 0's lanes"
    loader = built_in(fabric, in_lanes(folder, num_ranks, num_replicas="auto"))
    fabric.save(path, {"loader": loader})
    outcome = _refusal_of(fabric, path, loader)
    if outcome != "loaded":
        fabric.barrier()  # ranks that have loaded wait here
    return outcome


def job(
    dataset: Any,
    folder: Path,
    *,
    save_at: int | None = None,
    resume: int | None = None,
    killed: bool = False,
) -> tuple[list[Any], list[float]]:
    """See tests/integrations/test_trainers_on_ranks.py."""

    def end(record: Record) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    num_ranks, _ = size_and_rank()
    record = train(
        on_all_ranks(num_ranks, "ddp" if num_ranks > 1 else "auto"),
        adapted,
        image_loader(dataset, batch_size=8 // num_ranks),
        save_to=None if save_at is None else folder / str(save_at),
        stop=None if save_at is None else (0, save_at),
        resume_from=None if resume is None else folder / str(resume),
        epochs=2,
        after_saving=end if killed else None,
    )
    return [samples for _, samples in record.batches], record.weights


def on_four(rank: int, num_ranks: int, folder: Path) -> dict[str, Any]:
    """Return refusals on another number of ranks, and results on a mesh."""
    return {"refused": refusals(rank, num_ranks, folder), "mesh": on_a_mesh(folder)}


def refusals(rank: int, num_ranks: int, folder: Path) -> dict[str, str]:
    """Return the errors of a checkpoint of two ranks on another number."""
    fabric = on_all_ranks(num_ranks)
    loader = adapted(fabric, divided_by_itself(num_ranks, rank))
    before = loader.state_dict()
    outcome = {"per rank": _refusal_of(fabric, folder / "adapter, divided by itself", loader)}
    if loader.state_dict() != before:
        outcome["per rank"] = "changed"
    whole = setup_dataloaders(fabric, map_style(folder, 1), use_distributed_sampler=False)
    outcome["left as it was"] = f"{whole.num_replicas}, {len(whole)} batches"
    return outcome


def on_a_mesh(folder: Path) -> dict[str, Any]:
    """Run two data-parallel groups of two tensor-parallel ranks; the checkpoint is a folder."""

    def strategy() -> ModelParallelStrategy:
        return ModelParallelStrategy(
            lambda model, mesh: fully_shard(model, mesh=mesh["data_parallel"]),
            data_parallel_size=2,
            tensor_parallel_size=2,
        )

    found: dict[str, Any] = {}
    for name, make, division in (("map-style", map_style, None), ("lanes", in_lanes, "auto")):
        fabric, path = on_all_ranks(4, strategy()), folder / f"mesh-{name}"
        uninterrupted = _on_mesh(fabric, make(folder, 2, num_replicas=division))
        before = _on_mesh(fabric, make(folder, 2, num_replicas=division), save_to=path)
        after = _on_mesh(fabric, make(folder, 2, num_replicas=division), resume_from=path)
        exact = before + after == uninterrupted
        found[name] = {"uninterrupted": uninterrupted, "exact": exact}
    return found


def _on_mesh(
    fabric: Any, loader: Any, save_to: Path | None = None, resume_from: Path | None = None
) -> list[Any]:
    model = fabric.setup(nn.Linear(2, 2))
    batches = adapted(fabric, loader)
    state = {"model": model, "loader": batches}
    epochs = 2
    if resume_from is not None:
        fabric.load(resume_from, state)
        batches.load_state_dict(state["loader"])
        epochs = 1
    consumed = []
    for epoch in range(epochs):
        for number, batch in enumerate(batches):
            consumed.append(samples_of(batch))
            if save_to is not None and (epoch, number) == (1, 2):
                fabric.save(save_to, state)
                return consumed
    return consumed


def _refusal_of(fabric: Any, path: Path, loader: Any) -> str:
    try:
        fabric.load(path, {"loader": loader}, strict=True)
    except StateMismatch as error:
        return str(error)
    return "loaded"
