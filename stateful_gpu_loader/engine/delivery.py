"""Delivery: the last steps on a batch, in the user's own thread, inside ``next()``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from stateful_gpu_loader.engine.batch_transform import BatchTransform
from stateful_gpu_loader.engine.workers.torch_workers import pin


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Transforms the batch, and pins what stays on the CPU."""

    batch_transform: BatchTransform | None
    device: Callable[[], torch.device | None]
    """Where batches lie, if that is a GPU: known once one was made."""
    pins: bool
    """Whether batches go into page-locked memory, where there is an accelerator."""

    def __call__(self, batch: Any, *, seed: int, epoch: int, position: int) -> Any:
        """The batch as it is delivered.

        Args:
            batch: as the pipeline gives it.
            seed: of the pass.
            epoch: of the batch.
            position: of its first sample.
        """
        if self.batch_transform is not None:
            batch = self.batch_transform(
                batch, device=self.device(), seed=seed, epoch=epoch, position=position
            )
        if self.pins and torch.accelerator.is_available():
            return pin(batch)
        return batch
