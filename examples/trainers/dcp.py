"""A loader as a value of torch.distributed.checkpoint; also with `torchrun --nproc-per-node 2
-m examples.trainers.dcp`.

Safer here: another number of processes gets the same global batches. For lanes of shards, and for
datasets and samplers with their own states, `RankedState` keeps every rank's state.
"""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from examples.demo.photographs import write_photographs
from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.integrations.dcp import RankedState


def build(photos: Path) -> StatefulGPULoader[list[torch.Tensor]]:
    size = 12 // dist.get_world_size()
    recipes = [T.RandomResizedCrop(32), T.RandomHorizontalFlip()]
    return StatefulGPULoader(
        FolderSource(photos), size, True, seed=1, num_replicas="auto", transform=recipes
    )


def main(folder: Path, photos: Path) -> None:
    write_photographs(photos, files_per_class=8)
    batches = iter(loader := build(photos))
    next(batches), next(batches)
    dcp.async_save({"loader": loader}, checkpoint_id=folder / "loader").result()
    dcp.save({"loader": RankedState(loader)}, checkpoint_id=folder / "ranked")
    original = [part for batch in batches for part in batch]
    for name in ("loader", "ranked"):
        resumed = build(photos)
        value = resumed if name == "loader" else RankedState(resumed)
        dcp.load({"loader": value}, checkpoint_id=folder / name)
        rest = [part for batch in resumed for part in batch]
        same = "the same" if all(map(torch.equal, original, rest)) else "ANOTHER"
        print(f"{name}: resumed after step 2: {len(rest) // 2} batches, labels and pixels {same}")


if __name__ == "__main__":
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as temporary:
        dist.broadcast_object_list(shared := [temporary])
        main(Path(shared[0]), Path(temporary, "photos"))
        dist.barrier()
    dist.destroy_process_group()
