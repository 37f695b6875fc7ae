"""A loader of augmented images from any source, and worker settings that must not change it."""

from __future__ import annotations

from typing import Any

from stateful_gpu_loader import StatefulGPULoader
from stateful_gpu_loader import transforms as T

EXECUTIONS: tuple[dict[str, Any], ...] = (
    {"num_workers": 0},
    {"num_workers": 2, "worker_type": "thread"},
    {"num_workers": 2, "worker_type": "process", "multiprocessing_context": "fork"},
)


def make_loader(source: Any, **changes: Any) -> StatefulGPULoader[Any]:
    arguments: dict[str, Any] = {
        "batch_size": 3,
        "shuffle": True,
        "seed": 11,
        "transform": [T.RandomResizedCrop(24), T.RandomHorizontalFlip()],
        **changes,
    }
    return StatefulGPULoader(source, **arguments)
