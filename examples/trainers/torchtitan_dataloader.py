"""This loader as torchtitan's dataloader, in a loop like torchtitan's.

torchtitan calls a function with the data-parallel degree and rank, iterates the result once, and
saves it with torch.distributed.checkpoint. It has no epochs, so the sampler is as long as the run.
Unlike torchtitan's `ParallelAwareDataloader`, it resumes on another data-parallel degree, and
nothing is pickled. This example runs with torch alone.
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from examples.demo.photographs import write_photographs
from stateful_gpu_loader import FolderSource, ShuffledSampler, StatefulGPULoader
from stateful_gpu_loader import transforms as T
from stateful_gpu_loader.integrations.torchtitan import ParallelAwareLoader

STEPS, GLOBAL_BATCH = 20, 12


def build_dataloader(photos: Path, dp_world_size: int, dp_rank: int) -> ParallelAwareLoader:
    source = FolderSource(photos)
    loader = StatefulGPULoader(
        source,
        batch_size=GLOBAL_BATCH // dp_world_size,
        sampler=ShuffledSampler(source, num_samples=STEPS * GLOBAL_BATCH, seed=1),
        transform=[T.RandomResizedCrop(32), T.RandomHorizontalFlip()],
        rank=dp_rank,
        num_replicas=dp_world_size,
    )
    return ParallelAwareLoader(loader, dp_rank, dp_world_size)


def main(folder: Path) -> None:
    write_photographs(folder / "photos", files_per_class=4)
    dataloader = build_dataloader(folder / "photos", dp_world_size=1, dp_rank=0)
    batches = iter(dataloader)
    for _ in range(7):
        next(batches)
    dcp.save({"dataloader": dataloader}, checkpoint_id=folder / "step-7")
    undisturbed = [part for batch in batches for part in batch]

    resumed = build_dataloader(folder / "photos", dp_world_size=1, dp_rank=0)
    dcp.load({"dataloader": resumed}, checkpoint_id=folder / "step-7")
    rest = [part for batch in resumed for part in batch]
    is_same = len(rest) == len(undisturbed) and all(map(torch.equal, undisturbed, rest))
    print(f"resumed after step 7: {len(rest) // 2} of {STEPS} steps", end=" ")
    print("the same" if is_same else "ANOTHER")


if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
    dist.destroy_process_group()
