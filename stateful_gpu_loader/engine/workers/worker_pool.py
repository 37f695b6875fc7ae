"""WorkerPool: keeps a loader's workers from one pass to the next."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

import torch

from stateful_gpu_loader.engine.device.device_prefetch import DevicePrefetch
from stateful_gpu_loader.engine.device.place import CudaPlace
from stateful_gpu_loader.engine.device.stage import Stage
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.makers.own_generators import warn_of_own_generators
from stateful_gpu_loader.engine.pipeline import Pipeline, WorkersDied
from stateful_gpu_loader.engine.plan import Plan
from stateful_gpu_loader.engine.stats import Tally
from stateful_gpu_loader.engine.workers.choice import make_pipeline
from stateful_gpu_loader.errors import WorkerLost
from stateful_gpu_loader.state.epoch_progress import Address


class WorkerPool:
    """Makes pipelines, keeps an idle pipeline, and holds the device stage for the loader's life.

    Args:
        device: device on which batches are finished, if any.
        times: receives the workers' seconds.
    """

    def __init__(self, device: torch.device | None, times: Tally) -> None:
        self._device = device
        self._times = times
        self._stage: Stage | None = None
        self._former_stage: Callable[[], Stage | None] = _nothing
        """Stage of the previous worker pool, while an iterator uses it."""
        self._idle: list[tuple[Pipeline, bool]] = []
        """The pipeline kept for the next pass, if any, and whether it has not yet run a pass.

        ``pop()`` gives it to one thread only.
        """
        self._owner = os.getpid()
        """Process that owns the idle pipeline's workers."""
        self._has_looked = False
        """Whether private generators were searched for."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Give a copy or pickle of the loader its own worker pool."""
        return WorkerPool, (self._device, self._times)

    @property
    def device(self) -> torch.device | None:
        """The device of finished batches, with its index once it is known."""
        return self._device if self._stage is None else self._stage.place.device

    @property
    def idle(self) -> Pipeline | None:
        """Pipeline kept for the next pass; None in a forked child."""
        for pipeline, _ in self._own:
            if not pipeline.is_collected:
                return pipeline
        return None

    def take(
        self, plan: Plan, policy: BadSamplePolicy, seed: int, start: Address
    ) -> tuple[Pipeline, bool]:
        """Return the idle pipeline or a new one, and whether its workers are new."""
        while (idle := self._pop()) is not None:
            if not idle[0].is_collected:
                return idle
        return self.renew(plan, policy, seed, start), True

    def launch(self, plan: Plan, policy: BadSamplePolicy, seed: int, start: Address) -> None:
        """Start the workers of the next pass, unless they are started already.

        Raises:
            WorkerLost: the workers died while they started.
        """
        if self.idle is not None:
            return
        pipeline = self.renew(plan, policy, seed, start)
        try:
            pipeline.launch()
        except WorkersDied as loss:
            raise WorkerLost(
                f"{loss.message}. Remedy: "
                f"{loss.remedy or 'find out what ends them, such as memory'}"
            ) from loss
        self._own.append((pipeline, True))

    def renew(self, plan: Plan, policy: BadSamplePolicy, seed: int, start: Address) -> Pipeline:
        """Return a pipeline with new workers that are not started."""
        if not self._has_looked and not plan.is_iterable:
            warn_of_own_generators(plan.config.dataset, plan.config.transform)
        self._has_looked = True
        if self._device is not None:
            self._stage = self._stage or self._former_stage()
            if self._stage is None or self._stage.is_abandoned:
                hung = self._stage
                self._stage = Stage(CudaPlace(self._device), self._times)
                # If the device hangs again, the wait must have a limit.
                self._stage.has_finished = hung is not None
        return make_pipeline(plan, policy, seed, start, self._stage, self._times)

    @property
    def idle_processes(self) -> IdleProcesses | None:
        """The processes that wait for the next pass; None if there are none."""
        return IdleProcesses(self) if self.idle is not None and self.idle.workers else None

    def keep(self, pipeline: Pipeline | None) -> None:
        """Keep a pipeline for the next pass, and end the previous one."""
        if isinstance(pipeline, DevicePrefetch):
            pipeline.abandon()
        before = []
        while (idle := self._pop()) is not None:
            before.append(idle[0])
        if pipeline is not None:
            self._own.append((pipeline, False))
        for each in before:
            each.close()

    def twin(self, times: Tally) -> WorkerPool:
        """Return a worker pool for a copy of the loader, with the copy's times."""
        twin = WorkerPool(self.device, times)
        twin._has_looked = self._has_looked
        return twin

    def successor(self) -> WorkerPool:
        """Return the worker pool for later passes, and end the idle workers of this one.

        Workers of live iterators end with them. Until then both pools share the device stage.
        """
        self.keep(None)
        following = self.twin(self._times)
        following._former_stage = (
            self._former_stage if self._stage is None else weakref.ref(self._stage)
        )
        return following

    @property
    def _own(self) -> list[tuple[Pipeline, bool]]:
        """The list of idle pipelines; a forked child drops its parent's."""
        if self._owner != os.getpid():
            self._idle, self._owner = [], os.getpid()
        return self._idle

    def _pop(self) -> tuple[Pipeline, bool] | None:
        """Take an idle pipeline; return None if another thread has taken the last one."""
        try:
            return self._own.pop()
        except IndexError:
            return None


class IdleProcesses:
    """Persistent workers between passes, with attributes that programs read in torch's iterator."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    @property
    def _workers(self) -> list[Any]:
        return [] if self._pool.idle is None else self._pool.idle.workers

    def _shutdown_workers(self) -> None:
        """End the workers; the next pass starts new workers."""
        self._pool.keep(None)


def _nothing() -> None:
    """Return None: the first worker pool has no predecessor."""
