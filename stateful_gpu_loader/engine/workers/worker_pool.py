"""WorkerPool: who makes a loader's batches, from one pass to the next."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from stateful_gpu_loader.engine.device.device_prefetch import DevicePrefetch
from stateful_gpu_loader.engine.device.place import open_place
from stateful_gpu_loader.engine.device.stage import Stage
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.makers.own_generators import warn_of_own_generators
from stateful_gpu_loader.engine.pipeline import Pipeline, WorkersDied
from stateful_gpu_loader.engine.plan import Plan
from stateful_gpu_loader.engine.workers.choice import make_pipeline
from stateful_gpu_loader.errors import WorkerLost
from stateful_gpu_loader.state.epoch_progress import Address


class WorkerPool:
    """Makes pipelines, keeps one that is idle, and the device stage for the loader's life.

    Args:
        device: where batches are finished; None leaves them where the workers made them.
    """

    def __init__(self, device: torch.device | None) -> None:
        self._device = device
        self._stage: Stage | None = None
        self._former_stage: Callable[[], Stage | None] = _nothing
        """Of the crew before, as long as a live iterator uses it."""
        self.idle: Pipeline | None = None
        """Kept from a pass for the next one."""
        self._is_new = False
        """It has served none yet."""
        self._has_looked = False
        """For generators of the user's own, of which it warns once."""

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of the loader, or its pickle, has a crew of its own."""
        return WorkerPool, (self._device,)

    @property
    def device(self) -> torch.device | None:
        """Where batches are finished, with its index once that is known."""
        return self._device if self._stage is None else self._stage.place.device

    def take(
        self, plan: Plan, policy: BadSamplePolicy, seed: int, start: Address
    ) -> tuple[Pipeline, bool]:
        """The idle pipeline or a new one, and whether its workers are new."""
        idle, self.idle = self.idle, None
        is_new, self._is_new = self._is_new, False
        torch_workers = getattr(idle, "torch_workers", None)
        if idle is not None and not (torch_workers is not None and torch_workers.has_ended):
            return idle, is_new
        return self.renew(plan, policy, seed, start), True

    def launch(self, plan: Plan, policy: BadSamplePolicy, seed: int, start: Address) -> None:
        """Start the workers of the pass that begins next, unless they wait for it already.

        Raises:
            WorkerLost: they died while they started.
        """
        if self.idle is not None:
            return
        pipeline = self.renew(plan, policy, seed, start)
        try:
            pipeline.launch()
        except WorkersDied as loss:
            raise WorkerLost(
                f"{loss.what}. Remedy: look for what ends them: memory, or worker_init_fn"
            ) from loss
        self.idle, self._is_new = pipeline, True

    def renew(self, plan: Plan, policy: BadSamplePolicy, seed: int, start: Address) -> Pipeline:
        """A pipeline with new workers, none of them started."""
        if not self._has_looked and not plan.is_iterable:
            warn_of_own_generators(plan.config.dataset, plan.transform)
        self._has_looked = True
        if self._device is not None:
            self._stage = self._stage or self._former_stage()
            if self._stage is None or self._stage.is_abandoned:
                self._stage = Stage(open_place(self._device))
        return make_pipeline(plan, policy, seed, start, self._stage)

    def keep(self, pipeline: Pipeline | None) -> None:
        """Keep this one for the next pass; what was kept before is ended."""
        if isinstance(pipeline, DevicePrefetch):
            pipeline.abandon()
        before, self.idle = self.idle, pipeline
        self._is_new = False
        if before is not None:
            before.close()

    def twin(self) -> WorkerPool:
        """One of its own for a copy of the loader."""
        twin = WorkerPool(self.device)
        twin._has_looked = self._has_looked
        return twin

    def successor(self) -> WorkerPool:
        """The crew of the passes to come: what waits for them here is ended.

        What live iterators use of this one ends with them. The two share a device stage as long as
        that is: a decoder serves one thread.
        """
        self.keep(None)
        following = self.twin()
        following._former_stage = (
            self._former_stage if self._stage is None else weakref.ref(self._stage)
        )
        return following


def _nothing() -> None:
    """There is no crew before the first."""
