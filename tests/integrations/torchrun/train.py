"""A training script for torchrun: it resumes from its last step, on any number of processes.

It trains on photographs and, beside them, on tars in lanes, at one global batch. In a given step it
kills itself with SIGKILL, before that step's checkpoint is written.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from stateful_gpu_loader import FolderSource, StatefulGPULoader, TarShards, gather_state_dict
from stateful_gpu_loader import transforms as T
from tests.trainer_data import samples_of

GLOBAL_BATCH = 12
EPOCHS = 2
RECIPES = [T.RandomResizedCrop(16), T.RandomHorizontalFlip()]


def make_loader(dataset: Any, **arguments: Any) -> StatefulGPULoader[Any]:
    """Return a loader of 12 samples a batch over all ranks."""
    given = {"batch_size": GLOBAL_BATCH, "shuffle": True, "seed": 11, "transform": RECIPES}
    return StatefulGPULoader(dataset, **given | arguments)


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(3, 1)


def loss_of(model: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Return the loss from the images' mean colours: float32 []."""
    loss: torch.Tensor = model(images.to(torch.float32).mean(dim=(2, 3)) / 255).mean()
    return loss


def main(folder: Path, launch: str, deaths: dict[str, dict[str, Any]]) -> None:
    """Train to the end, or to the step where this attempt dies.

    Args:
        deaths: for each attempt of torchrun, the step in which it ends, and the ranks that die;
        none means all.
    """
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    torch.set_num_threads(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    ranked = {"batch_size": GLOBAL_BATCH // size, "num_replicas": "auto"}
    names = json.loads((folder / "data.json").read_text())
    photographs = make_loader(FolderSource.from_paths(names["photos"]), **ranked)
    tars = make_loader(TarShards(names["tars"], num_lanes=12), **ranked)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step, first_epoch = 0, 0
    newest = folder / "checkpoint.pt"
    if newest.exists():
        saved = torch.load(newest, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        photographs.load_state_dict(saved["photographs"])
        tars.load_state_dict(saved["tars"])
        step, first_epoch = saved["step"], saved["epoch"]
    # One epoch of lanes: then its state is at the next.
    of_tars = iter(tars) if tars.state_dict()["epoch"] == 0 else iter(())
    for epoch in range(first_epoch, EPOCHS):
        for batch in photographs:
            optimizer.zero_grad()
            loss_of(model, batch[0]).backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= size
            optimizer.step()
            # Ranks run out of lanes by themselves.
            of_lanes = next(of_tars, None)
            record = {
                "photographs": samples_of(batch),
                "tars": [] if of_lanes is None else samples_of(of_lanes),
            }
            name = f"{step:02d}-{launch}.{attempt}-{rank}-of-{size}.json"
            (folder / "seen" / name).write_text(json.dumps(record))
            death = deaths.get(attempt)
            if death is not None and death["step"] == step and rank in death["ranks"]:
                os.kill(os.getpid(), signal.SIGKILL)
            step += 1
            merged = gather_state_dict(tars.state_dict())
            if rank == 0:
                saved = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "photographs": photographs.state_dict(),
                    "tars": merged,
                    "step": step,
                    "epoch": epoch,
                }
                torch.save(saved, folder / "checkpoint.part")
                os.replace(folder / "checkpoint.part", newest)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
