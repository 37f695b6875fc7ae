"""One cold start: from the start of a Python process to the first batch of a folder.

``python -m benchmarks.cold_process WHO WHAT FOLDER CACHE REPORT`` writes its costs to REPORT as
JSON. Only the loaders import modules that take time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.tree import cpu_seconds, memory_bytes

OURS, TORCH = "ours", "torch"
IMPORTS, FIRST_BATCH = "imports", "first batch"
BATCH_SIZE, NUM_WORKERS, SIZE = 64, 2, 32


def main() -> None:
    """Import the loader's modules, deliver a batch if requested, and report."""
    who, what, folder, cache, report = sys.argv[1:]
    found: dict[str, float] = {}
    batches = (_ours if who == OURS else _torch)(what, folder, cache, found)
    if batches is not None:
        images, _ = next(batches)
        if tuple(images.shape) != (BATCH_SIZE, 3, SIZE, SIZE):
            raise ValueError(f"{who} delivered {list(images.shape)}. Remedy: correct the benchmark")
    found["at"] = time.monotonic()
    session = os.getsid(0)
    found |= {"cpu": cpu_seconds(session), "memory": memory_bytes(session) / 2**20}
    Path(report).write_text(json.dumps(found), encoding="utf-8")
    os._exit(0)  # excludes the time in which the workers end


def _ours(what: str, folder: str, cache: str, found: dict[str, float]) -> Iterator[Any] | None:
    import torch
    import torchvision.transforms.v2  # noqa: F401

    from stateful_gpu_loader import FolderSource, StatefulGPULoader
    from stateful_gpu_loader import transforms as T
    from stateful_gpu_loader.decoders import make_decoder

    make_decoder("auto")
    if what == IMPORTS:
        return None
    clock = time.process_time()
    source = FolderSource(folder, cache_dir=cache)
    found["listing"] = time.process_time() - clock
    recipes = [
        T.RandomResizedCrop(SIZE),
        T.RandomHorizontalFlip(),
        T.ToDtype(torch.float32, scale=True),
    ]
    loader: StatefulGPULoader[Any] = StatefulGPULoader(
        source,
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=NUM_WORKERS,
        seed=42,
        transform=recipes,
    )
    return iter(loader)


def _torch(what: str, folder: str, cache: str, found: dict[str, float]) -> Iterator[Any] | None:
    import torch
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    if what == IMPORTS:
        return None
    steps = [
        v2.RandomResizedCrop(SIZE),
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
    ]
    clock = time.process_time()
    dataset = ImageFolder(folder, v2.Compose(steps))
    found["listing"] = time.process_time() - clock
    return iter(DataLoader(dataset, BATCH_SIZE, shuffle=True, num_workers=NUM_WORKERS))


if __name__ == "__main__":
    main()
