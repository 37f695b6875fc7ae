"""Ranks that read their place from torch.distributed (B3, B6), with real gloo processes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from stateful_gpu_loader import StatefulGPULoader
from tests.conformance import through_json
from tests.map_datasets import Indices
from tests.rank_processes import on_ranks

NUM_SAMPLES, GLOBAL_BATCH = 48, 8


def loader_of(num_replicas: int) -> StatefulGPULoader[torch.Tensor]:
    return StatefulGPULoader(
        Indices(NUM_SAMPLES),
        batch_size=GLOBAL_BATCH // num_replicas,
        shuffle=True,
        num_replicas="auto",
    )


def serve(rank: int, folder: Path, state: dict[str, Any] | None = None) -> dict[str, Any]:
    torch.distributed.destroy_process_group()
    loader = loader_of(2)  # built before the process group exists, as scripts do
    torch.distributed.init_process_group(
        "gloo", f"file://{folder}/meeting", world_size=2, rank=rank
    )
    if state is not None:
        loader.load_state_dict(state)
    batches, states = [], [loader.state_dict()]
    for batch in loader:
        batches.append(batch.tolist())
        states.append(loader.state_dict())
    return {"batches": batches, "states": states, "length": len(loader)}


def test_ranks_share_one_order_and_one_state(tmp_path: Path) -> None:
    """B3, B6: two ranks, and then one alone from the state of either."""
    ranks = on_ranks(serve, 2, tmp_path)
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
    ranks = on_ranks(serve, 2, tmp_path, through_json({**state, "position": 3 * GLOBAL_BATCH}))
    together = [
        sorted(a + b) for a, b in zip(ranks[0]["batches"], ranks[1]["batches"], strict=True)
    ]
    assert together == wanted[3:]


def serve_until_killed(rank: int, folder: Path) -> None:
    """A job that saves behind every batch, until all its ranks are killed in the fourth."""
    loader = loader_of(2)
    for step, batch in enumerate(loader):
        if step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        seen = folder / f"{step}-{rank}.json"
        seen.write_text(json.dumps({"batch": batch.tolist(), "state": loader.state_dict()}))


def test_a_job_that_is_killed_goes_on_exactly(tmp_path: Path) -> None:
    """G5, B3: SIGKILL on both ranks; one rank finishes what an undisturbed job would have read."""
    on_ranks(serve_until_killed, 2, tmp_path, killed=True)
    wanted = [sorted(batch.tolist()) for batch in loader_of(1)]
    saved = [json.loads((tmp_path / f"2-{rank}.json").read_text()) for rank in range(2)]
    assert sorted(saved[0]["batch"] + saved[1]["batch"]) == wanted[2]
    alone = loader_of(1)
    alone.load_state_dict(saved[0]["state"])
    assert [sorted(batch.tolist()) for batch in alone] == wanted[3:]
