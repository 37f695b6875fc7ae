"""A training loop for Ray's workers as in docs/trainers/ray.md, and the record of its steps.

Each step takes a batch of photographs and one of lanes, so that one run shows both.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any, TypeAlias

import ray.train
import ray.train.torch
import torch
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from stateful_gpu_loader import StatefulGPULoader, gather_state_dict
from stateful_gpu_loader.integrations.ray import RayWorkers
from tests.map_datasets import Indices
from tests.trainer_data import Brightness, image_loader, seen

KINDS = ("photographs", "lanes")
NUM_EPOCHS, NUM_IMAGES = 2, 32
GLOBAL_BATCH = 8

Step: TypeAlias = dict[str, list[list[Any]]]
"""Numbers of the samples and a digest of each image, by kind and rank."""


def loaders_of(
    data: dict[str, Any], num_ranks: int, **given: Any
) -> dict[str, StatefulGPULoader[Any]]:
    given |= {"batch_size": GLOBAL_BATCH // num_ranks, "num_replicas": "auto"}
    return {kind: image_loader(data[kind], **given) for kind in KINDS}


def actor_arguments() -> dict[str, Any]:
    """Return arguments for a worker as an actor on this node, outside the job's resources."""
    here = ray.get_runtime_context().get_node_id()
    scheduling = NodeAffinitySchedulingStrategy(here, soft=False)
    return {"num_workers": 1, "worker_type": RayWorkers(num_cpus=0.1, scheduling=scheduling)}


def train(config: dict[str, Any]) -> list[Any]:
    """Train two epochs with a checkpoint after every second step; return the final weights."""
    context = ray.train.get_context()
    workers = actor_arguments() if config.get("with_actors") else {}
    loaders = loaders_of(config["data"], context.get_world_size(), **workers)
    model = ray.train.torch.prepare_model(Brightness())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first_epoch = step = 0

    checkpoint = ray.train.get_checkpoint() or config.get("checkpoint")
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder, "state.pt"), weights_only=True)
        _bare(model).load_state_dict(saved["model"])
        first_epoch, step = saved["epoch"], saved["step"]
        for kind, loader in loaders.items():
            loader.load_state_dict(saved["loaders"][kind])

    for epoch in range(first_epoch, NUM_EPOCHS):
        for batches in zip(*loaders.values(), strict=True):
            _kill_here(config, step, context.get_world_rank())
            loss = sum(model(images) for images, _ in batches)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            _write(config, step, context.get_world_rank(), batches)
            step += 1
            if step % 2:
                continue
            states = {kind: gather_state_dict(each.state_dict()) for kind, each in loaders.items()}
            with tempfile.TemporaryDirectory() as folder:
                if context.get_world_rank() == 0:
                    torch.save(
                        {
                            "model": _bare(model).state_dict(),
                            "loaders": states,
                            "epoch": epoch,
                            "step": step,
                        },
                        Path(folder, "state.pt"),
                    )
                reported = Checkpoint(folder) if context.get_world_rank() == 0 else None
                ray.train.report({"step": step}, checkpoint=reported)
    return [weight.tolist() for weight in model.parameters()]


def trained(name: str, folder: Path, data: dict[str, Any], num_workers: int, **config: Any) -> Any:
    """Run one job; return Ray's result. The record of its steps is in its folder."""
    (folder / name).mkdir()
    given = {"data": data, "written": str(folder / name), **config}
    return trainer_of(train, given, num_workers, folder / "ray", name).fit()


def trainer_of(
    loop: Any, config: dict[str, Any], num_workers: int, storage: Path, name: str
) -> ray.train.torch.TorchTrainer:
    return ray.train.torch.TorchTrainer(
        loop,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=num_workers),
        run_config=RunConfig(
            name=name,
            storage_path=str(storage),
            checkpoint_config=CheckpointConfig(num_to_keep=None),
            failure_config=FailureConfig(max_failures=1),
        ),
    )


def steps_in(folder: Path) -> dict[int, dict[int, list[dict[str, Any]]]]:
    """Return the records by step and rank, one for each time that the step was made."""
    steps: dict[int, dict[int, list[dict[str, Any]]]] = {}
    for path in sorted(folder.glob("rank-*.jsonl")):
        for line in path.read_text().splitlines():
            made = json.loads(line)
            steps.setdefault(made["step"], {}).setdefault(made["rank"], []).append(made["given"])
    return steps


def of_ranks(steps: dict[int, dict[int, Any]], step: int, kind: str) -> list[Any]:
    """Return the last global batch of a step: numbers and digests of all ranks."""
    return sorted(pair for given in steps[step].values() for pair in given[-1][kind])


def prepared_loaders(config: dict[str, Any]) -> dict[str, Any]:
    """Return Ray's own rebuild, and the loader's batches before and after it."""
    num_workers = ray.train.get_context().get_world_size()
    data, prepare = config["data"], ray.train.torch.prepare_data_loader
    found: dict[str, Any] = {}
    for kind, loader in loaders_of(data, num_workers).items():
        found[f"{kind} untouched"] = prepare(loader, move_to_device=False) is loader
        expected = [seen(batch) for batch in loaders_of(data, num_workers)[kind]]
        found[f"{kind} same"] = [seen(batch) for batch in prepare(loader)] == expected

    ahead = loaders_of(data, num_workers)["photographs"]
    states = [ahead.state_dict()]
    states += [ahead.state_dict() for _ in ahead]
    ahead = loaders_of(data, num_workers)["photographs"]
    found["ahead"] = [
        (states.index(ahead.state_dict()), states.index(ahead.state_dict(batches_ago=1)))
        for _ in prepare(ahead)
        if ahead.state_dict() in states
    ]
    found["after the last"] = ahead.state_dict()["epoch"], ahead.state_dict()["position"]
    undivided = StatefulGPULoader(Indices(12), batch_size=2, shuffle=True, seed=1)
    rebuilt = prepare(undivided, move_to_device=False)
    found["undivided"] = type(rebuilt).__name__, type(rebuilt.sampler).__name__
    found["undivided has a state"] = hasattr(rebuilt, "state_dict")
    return found


def _bare(model: torch.nn.Module) -> torch.nn.Module:
    return getattr(model, "module", model)


def _kill_here(config: dict[str, Any], step: int, rank: int) -> None:
    """Kill rank 1 once, as the kernel does when memory runs out."""
    mark = Path(config["written"], "killed")
    if (step, rank) == (config.get("kill_at"), 1) and not mark.exists():
        ray.train.get_all_reported_checkpoints()  # waits until Ray has taken the last one
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def _write(config: dict[str, Any], step: int, rank: int, batches: Any) -> None:
    given = {
        kind: [
            [number, seen((images[i : i + 1], numbers[i : i + 1]))[1]]
            for i, number in enumerate(numbers.tolist())
        ]
        for kind, (images, numbers) in zip(KINDS, batches, strict=True)
    }
    line = json.dumps({"step": step, "rank": rank, "given": given})
    with Path(config["written"], f"rank-{rank}.jsonl").open("a") as file:
        file.write(line + "\n")
