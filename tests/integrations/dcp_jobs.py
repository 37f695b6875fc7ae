"""Jobs with loaders, for the processes of the tests of torch.distributed.checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.utils.data import Dataset

from stateful_gpu_loader import StatefulGPULoader, StateMismatch
from stateful_gpu_loader.integrations.dcp import RankedState
from tests.conformance import same
from tests.damaged import ERRORS, Damaged, N
from tests.datasets.shards import Numbers
from tests.trainer_data import image_loader, photos, samples_of, tars
from tests.user_objects import StatefulSampler

Loader = StatefulGPULoader[Any]
GLOBAL_BATCH = 4
Samples = list[list[tuple[int, str]]]
"""The number of each sample and a digest of its pixels, for each batch of a rank."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Load, deliver, save."""

    data: str
    dataset: Any
    way: str = "value"
    load: Path | None = None
    steps: int | None = None
    """Batches to deliver before saving. None: to the end of the epoch, and the whole next one."""
    save: Path | None = None


class Ledger(Dataset[Any]):
    """Has a state with dicts in lists, int keys, tuples and a tensor, which DCP takes apart."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.entries: list[dict[str, Any]] = []
        self.of_index: dict[int, tuple[int, ...]] = {}
        self.total = torch.zeros(0)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, int]:
        given = len(self.entries)
        self.entries.append({"index": index})
        self.of_index[index] = (given, index)
        self.total = torch.cat([self.total, torch.tensor([float(index)])])
        return index, given + int(self.total.sum()) * 100 + sum(map(len, self.of_index.values()))

    def state_dict(self) -> dict[str, Any]:
        return {"entries": self.entries, "of_index": self.of_index, "total": self.total}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.entries, self.of_index = state_dict["entries"], state_dict["of_index"]
        self.total = state_dict["total"]


class App:
    """An application's state around a loader's, as in DCP's tutorial."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.model = torch.nn.Linear(1, 1)

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "loader": self.loader.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.model.load_state_dict(state_dict["model"])
        self.loader.load_state_dict(state_dict["loader"])


def datasets(folder: Path) -> dict[str, Any]:
    """Return the jobs' datasets by name. Files are written here, before processes read them."""
    return {
        "map": photos(folder / "photos"),
        "lanes": tars(folder / "tars"),
        "counted lanes": Numbers((5, 8, 3, 8), lanes=4, counted=True),
        "lanes that end alone": Numbers((9, 2, 8, 3), lanes=4),
        "bad samples": Damaged(N, ERRORS),
        "states": Ledger(12),
    }


def build(job: Job) -> Loader:
    """Return a loader of this rank; the global batch is 4 on any number of ranks."""
    ranked = {"batch_size": GLOBAL_BATCH // dist.get_world_size(), "num_replicas": "auto"}
    if job.data in ("map", "lanes"):
        return image_loader(job.dataset, **ranked)
    if job.data == "states":
        return StatefulGPULoader(job.dataset, 2, sampler=StatefulSampler(12 + 2 * dist.get_rank()))
    mode = "drop" if job.data == "bad samples" else "raise"
    return StatefulGPULoader(job.dataset, seed=3, shuffle=True, on_bad_sample=mode, **ranked)


def run_all(rank: int, jobs: list[Job]) -> list[Samples]:
    """Run jobs; return the samples that this rank delivered in each."""
    return [run(job) for job in jobs]


def run(job: Job) -> Samples:
    loader = build(job)
    if job.load is not None:
        load(loader, job.way, job.load)
    seen: Samples = []
    pending: Any = None
    for batch in batches_of(loader, job.steps):
        seen.append(samples_of(batch))
        if len(seen) == job.steps:
            pending = save(loader, job.way, job.save)
    if job.steps is not None and len(seen) < job.steps:
        # This rank has ended before others.
        pending = save(loader, job.way, job.save)
    if pending is not None:
        pending.result()
    # Batches after the save only show that it did not include them.
    return seen[: job.steps]


def batches_of(loader: Loader, steps: int | None) -> Iterator[Any]:
    """Return two batches more than asked for. None: the rest of the first epoch, and the second."""
    if steps is None:
        while loader.state_dict()["epoch"] < 2:
            yield from loader
        return
    for number, batch in enumerate(loader):
        yield batch
        if number == steps + 1:
            return


def save(loader: Loader, way: str, path: Path | None) -> Any:
    """Save; return the future of an asynchronous save, else None."""
    if path is None:
        return None
    if way == "async":
        return dcp.async_save({"loader": loader}, checkpoint_id=path)
    value: Any = {
        "value": loader,
        "ranked": RankedState(loader),
        "app": App(loader),
        "dict": {"nested": loader.state_dict()},
    }[way]
    dcp.save({"loader": value}, checkpoint_id=path)
    return None


def load(loader: Loader, way: str, path: Path) -> None:
    value: Any = {
        "value": loader,
        "async": loader,
        "ranked": RankedState(loader),
        "app": App(loader),
        "dict": {"nested": loader.state_dict()},
    }[way]
    state = {"loader": value}
    dcp.load(state, checkpoint_id=path)
    if way == "dict":
        loader.load_state_dict(state["loader"]["nested"])


def refused(rank: int, job: Job) -> tuple[str, str, bool]:
    """Return the type and text of the load's error, and whether the loader is unchanged."""
    loader = build(job)
    before = loader.state_dict()
    try:
        assert job.load is not None
        load(loader, job.way, job.load)
    except (StateMismatch, dcp.api.CheckpointException) as error:
        return type(error).__name__, str(error), same(loader.state_dict(), before)
    raise AssertionError("it was loaded")


def save_of_rank_0(rank: int, job: Job) -> dict[str, Any]:
    """Save on rank 0 only; return each rank's state."""
    loader = build(job)
    next(iter(loader))
    if rank == 0:
        dcp.save({"loader": loader}, checkpoint_id=job.save, no_dist=True)
    return loader.state_dict()
