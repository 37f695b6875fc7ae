"""Ranks that read their place from torch.distributed (B3, B6), with real gloo processes."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.distributed
import torch.multiprocessing

from stateful_gpu_loader import StatefulGPULoader
from tests.datasets import Indices

NUM_SAMPLES, GLOBAL_BATCH = 48, 8


def loader_of(num_replicas: int) -> StatefulGPULoader[torch.Tensor]:
    return StatefulGPULoader(
        Indices(NUM_SAMPLES),
        batch_size=GLOBAL_BATCH // num_replicas,
        shuffle=True,
        num_replicas="auto",
    )


def serve_rank(rank: int, num_replicas: int, folder: str) -> None:
    loader = loader_of(num_replicas)  # built before the process group exists, as scripts do
    torch.distributed.init_process_group(
        "gloo", f"file://{folder}/rendezvous", world_size=num_replicas, rank=rank
    )
    state = Path(folder) / "start.json"
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
    batches, states = [], [loader.state_dict()]
    for batch in loader:
        batches.append(batch.tolist())
        states.append(loader.state_dict())
    record = {"batches": batches, "states": states, "length": len(loader)}
    (Path(folder) / f"rank{rank}.json").write_text(json.dumps(record))
    torch.distributed.destroy_process_group()


def run_ranks(num_replicas: int, folder: Path) -> list[dict]:  # type: ignore[type-arg]
    torch.multiprocessing.spawn(serve_rank, (num_replicas, str(folder)), nprocs=num_replicas)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(num_replicas)]


def test_ranks_share_one_order_and_one_state(tmp_path: Path) -> None:
    """B3, B6: two ranks, and then one alone from the state of either."""
    ranks = run_ranks(2, tmp_path)
    assert ranks[0]["states"] == ranks[1]["states"]
    assert [rank["length"] for rank in ranks] == [6, 6]
    together = [
        sorted(a + b) for a, b in zip(ranks[0]["batches"], ranks[1]["batches"], strict=True)
    ]
    assert sorted(index for batch in together for index in batch) == list(range(NUM_SAMPLES))
    alone = loader_of(1)
    alone.load_state_dict(ranks[1]["states"][2])
    assert [sorted(batch.tolist()) for batch in alone] == together[2:]


def test_two_ranks_go_on_from_the_state_of_one(tmp_path: Path) -> None:
    """B3."""
    alone = loader_of(1)
    state = alone.state_dict()
    batches = iter(alone)
    wanted = [sorted(batch.tolist()) for batch in batches]
    assert len(wanted) == 6
    (tmp_path / "start.json").write_text(json.dumps({**state, "position": 3 * GLOBAL_BATCH}))
    ranks = run_ranks(2, tmp_path)
    together = [
        sorted(a + b) for a, b in zip(ranks[0]["batches"], ranks[1]["batches"], strict=True)
    ]
    assert together == wanted[3:]
