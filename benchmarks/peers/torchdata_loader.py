"""torchdata's StatefulDataLoader."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.datasets import Numbers
from benchmarks.peers.adapter import SEED, Delivery, Peer, Work, from_bytes, loaded, to_bytes
from benchmarks.peers.torch_loader import tensor_photographs


class Torchdata(Peer):
    """A map-style dataset, decoded by torchvision."""

    def photographs(self, work: Work, state: bytes | None) -> Delivery:
        return loaded(_loader(tensor_photographs(work), work), state)

    def numbers(self, work: Work, state: bytes | None) -> Delivery:
        return loaded(_loader(Numbers(work.num_samples), work), state)

    def moved(self, state: bytes, work: Work, batches: int) -> bytes:
        found = from_bytes(state)
        move_counters(found, batches, work)
        return to_bytes(found)


def _loader(dataset: Dataset[Any], work: Work) -> Any:
    torch.manual_seed(SEED)
    return StatefulDataLoader(dataset, work.batch_size, shuffle=True, num_workers=work.num_workers)


def move_counters(state: dict[str, Any], batches: int, work: Work) -> None:
    """Increase StatefulDataLoader's counts of batches and samples."""
    snapshot = state["_snapshot"]
    main = snapshot["_main_snapshot"]
    snapshot["_snapshot_step"] += batches
    main["_sampler_iter_yielded"] += batches
    sampler = main["_sampler_iter_state"]
    if sampler is not None:
        sampler["samples_yielded"] += batches * work.batch_size
        nested = sampler.get("sampler_iter_state")
        if nested is not None:
            nested["yielded"] += batches * work.batch_size
