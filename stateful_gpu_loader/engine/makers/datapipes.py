"""What torch's DataLoader does for DataPipes before each pass: seeds and shards their graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch.utils.data.graph_settings import apply_random_seed, apply_sharding

from stateful_gpu_loader.engine.world import size_and_rank
from stateful_gpu_loader.randomness.philox import Stream, sample_seeds
from stateful_gpu_loader.records import WorkerStart


def prepare_datapipe(datapipe: Any, start: WorkerStart) -> None:
    """Give the graph the pass's seed, the same in all workers and ranks.

    Worker processes have divided it when they started; in the user's own thread it is divided
    among the ranks here.
    """
    (seed,) = sample_seeds(start.seed, start.epoch, np.zeros(1, np.int64), Stream.DATAPIPES)
    generator = torch.Generator()
    generator.manual_seed(seed)
    apply_random_seed(datapipe, generator)
    if get_worker_info() is None:
        apply_sharding(datapipe, *size_and_rank())
