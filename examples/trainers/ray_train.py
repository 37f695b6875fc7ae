"""Ray Train with two workers, one of which is killed during the second epoch.

Unlike in Ray's guide, the loader replaces `prepare_data_loader`. Its state, gathered from all
workers, is in the checkpoint, from which Ray restarts the workers. The batches of both workers are
compared with one loader. Needs `pip install 'stateful_gpu_loader[demo]' 'ray[train]'`.
"""

import os
import tempfile
from pathlib import Path

import ray
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from examples.demo.photographs import write_photographs
from stateful_gpu_loader import FolderSource, StatefulGPULoader, gather_state_dict
from stateful_gpu_loader import transforms as T


def build(folder: str, batch_size: int, num_replicas: str | None = None) -> StatefulGPULoader:
    source, crop = FolderSource(f"{folder}/photographs"), [T.RandomResizedCrop(64)]
    given = {"shuffle": True, "seed": 7, "transform": crop, "num_replicas": num_replicas}
    return StatefulGPULoader(source, batch_size, **given)


def train(config: dict[str, str]) -> None:
    folder, rank = config["folder"], ray.train.get_context().get_world_rank()
    loader, step = build(folder, batch_size=2, num_replicas="auto"), 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as path:
            state, step = torch.load(f"{path}/state.pt", weights_only=True)
        loader.load_state_dict(state)
    while loader.state_dict()["epoch"] < 2:
        for batch in loader:
            if (rank, step) == (1, 12) and not Path(folder, "killed").exists():
                Path(folder, "killed").touch()
                os.kill(os.getpid(), 9)
            torch.save(batch, f"{folder}/{step}-{rank}.pt")
            step += 1
            state = gather_state_dict(loader.state_dict())
            with tempfile.TemporaryDirectory() as path:
                torch.save((state, step), f"{path}/state.pt")
                ray.train.report({}, checkpoint=Checkpoint(path) if rank == 0 else None)


with tempfile.TemporaryDirectory() as folder:
    write_photographs(Path(folder, "photographs"), files_per_class=4)
    two, given = ScalingConfig(num_workers=2), {"folder": folder}
    run = RunConfig(storage_path=folder, failure_config=FailureConfig(max_failures=1))
    TorchTrainer(train, train_loop_config=given, scaling_config=two, run_config=run).fit()
    whole, is_same = build(folder, batch_size=4), []
    for step, batch in enumerate([*whole, *whole]):
        pair = [torch.load(f"{folder}/{step}-{rank}.pt") for rank in (0, 1)]
        both = [torch.stack(parts, dim=1).flatten(0, 1) for parts in zip(*pair, strict=True)]
        is_same.append(all(map(torch.equal, both, batch)))
    print("a worker was killed in step 12:", Path(folder, "killed").exists())
print(f"{len(is_same)} batches of both workers", "the same" if all(is_same) else "ANOTHER")
