"""This package's loader."""

from __future__ import annotations

import json

from benchmarks.datasets import Numbers
from benchmarks.peers.adapter import SEED, Delivery, Peer, Work, loaded
from benchmarks.photograph_loaders import recipes
from stateful_gpu_loader import FolderSource, StatefulGPULoader


class Ours(Peer):
    """StatefulGPULoader over its own source, or over any dataset."""

    def photographs(self, work: Work, state: bytes | None) -> Delivery:
        source = FolderSource.from_paths(work.files, work.numbers, "/")
        return loaded(
            StatefulGPULoader(
                source,
                batch_size=work.batch_size,
                shuffle=True,
                num_workers=work.num_workers,
                seed=SEED,
                transform=recipes(),
            ),
            state,
        )

    def numbers(self, work: Work, state: bytes | None) -> Delivery:
        return loaded(
            StatefulGPULoader(
                Numbers(work.num_samples),
                work.batch_size,
                shuffle=True,
                num_workers=work.num_workers,
                seed=SEED,
            ),
            state,
        )

    def moved(self, state: bytes, work: Work, batches: int) -> bytes:
        found = json.loads(state)
        found["position"] += batches * work.batch_size
        return json.dumps(found).encode()
