"""Files with loaders' states, written by the real libraries."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from stateful_gpu_loader import Checkpoint, StatefulGPULoader
from stateful_gpu_loader.integrations.torchtitan import ParallelAwareLoader

State = dict[str, Any]


class Calls:
    """Calls a function when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.called = function, arguments

    def __reduce__(self) -> Any:
        return self.called


class Counting(IterableDataset[int]):
    """An iterable dataset with a state."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Iterable[int]:  # type: ignore[override]
        while self.next < 20:
            self.next += 1
            yield self.next - 1

    def state_dict(self) -> State:
        return {"next": self.next}

    def load_state_dict(self, state: State) -> None:
        self.next = state["next"]


def after(batches: int, dataset: Any = None, **arguments: Any) -> State:
    """Return the state of a loader after some batches."""
    given = {"batch_size": 2, "seed": 1, "shuffle": dataset is None, **arguments}
    loader: StatefulGPULoader[Any] = StatefulGPULoader(
        range(10) if dataset is None else dataset, **given
    )
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return loader.state_dict()


def after_in_torchdata(batches: int) -> State:
    """Return the state of torchdata's loader after some batches."""
    loader: Any = StatefulDataLoader(list(range(10)), batch_size=2, shuffle=True)
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    state: State = loader.state_dict()
    return state


def write_all(folder: Path) -> dict[str, State]:
    """Write a checkpoint of each kind; return the state in each, by the name of its file."""
    train, val = after(2), after(1, shuffle=False)
    torch.save({"model": {"w": torch.zeros(4)}, "train": train, "val": val}, folder / "script.pt")
    torch.save(train, folder / "bare.pt", _use_new_zipfile_serialization=False)
    torch.save({"loader": after_in_torchdata(2)}, folder / "torchdata.pt")
    (folder / "state.json").write_text(json.dumps({"loader": train}))
    checkpoint = Checkpoint()
    checkpoint.set_state("loader", train)
    checkpoint.save(folder / "checkpoint.json")
    loader: StatefulGPULoader[Any] = StatefulGPULoader(
        range(10), batch_size=2, seed=1, shuffle=True
    )
    loader.load_state_dict(train)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DCP warns that there is one process
        dcp.save({"loader": loader, "w": torch.zeros(4)}, checkpoint_id=folder / "dcp")
        titan = ParallelAwareLoader(loader, 0, 1)
        dcp.save({"dataloader": titan, "w": torch.zeros(4)}, checkpoint_id=folder / "titan")
        stateful: StatefulGPULoader[Any] = StatefulGPULoader(Counting(), batch_size=2, seed=1)
        next(iter(stateful))
        dcp.save({"loader": stateful}, checkpoint_id=folder / "lists")
    return {"train": train, "val": val, "lists": stateful.state_dict()}
