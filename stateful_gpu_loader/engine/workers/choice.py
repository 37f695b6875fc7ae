"""Chooses the workers of a loader: the user's own thread, threads or processes."""

from __future__ import annotations

import numpy as np

from stateful_gpu_loader.engine.device.device_prefetch import DevicePrefetch
from stateful_gpu_loader.engine.device.stage import Stage
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.makers.choice import device_steps, maker_of
from stateful_gpu_loader.engine.makers.collate import DRAWS_NOTHING
from stateful_gpu_loader.engine.makers.images import Allocate
from stateful_gpu_loader.engine.makers.memory import BatchMemory
from stateful_gpu_loader.engine.pipeline import Pipeline
from stateful_gpu_loader.engine.plan import Plan
from stateful_gpu_loader.engine.stats import StageTimes
from stateful_gpu_loader.engine.workers.inline import InlinePipeline
from stateful_gpu_loader.engine.workers.processes import ProcessPipeline
from stateful_gpu_loader.engine.workers.segments import WorkerSegments
from stateful_gpu_loader.engine.workers.threads import ThreadPipeline
from stateful_gpu_loader.engine.workers.torch_workers import InnerLoader
from stateful_gpu_loader.randomness.philox import Stream, sample_seeds
from stateful_gpu_loader.state.epoch_progress import Address

_BATCHES_WITH_THE_USER = 2
"""Number of batches held by the user: the present one, and the previous one until it is freed."""


def runs_in_threads(plan: Plan) -> bool:
    """Whether the workers are threads: by default if they only read data and apply recipes.

    Raises:
        ValueError: threads are requested for work that draws from the global generators, which all
            threads share, or with arguments that only processes support.
    """
    worker_type = plan.config.worker_type
    if worker_type == "process":
        return False
    obstacle = _obstacle_to_threads(plan)
    if obstacle is not None and worker_type == "thread":
        raise ValueError(
            f"worker_type='thread' cannot serve this loader: {obstacle}. "
            "Remedy: worker_type='process' or 'auto'"
        )
    return obstacle is None


def runs_in_processes(plan: Plan) -> bool:
    """Whether the workers are processes."""
    return plan.config.num_workers > 0 and not runs_in_threads(plan)


def make_pipeline(
    plan: Plan,
    policy: BadSamplePolicy,
    seed: int,
    start: Address,
    stage: Stage | None = None,
    times: StageTimes | None = None,
) -> Pipeline:
    """Return a pipeline that is not started; its first pass will begin at ``start``.

    Args:
        policy: what is done about bad samples.
        seed: seed of the loader.
        stage: finishes the batches on its device; None leaves them to the workers.
        times: where the seconds of each stage are noted.
    """
    config = plan.config
    if stage is None:
        memory = BatchMemory(config.in_flight + _BATCHES_WITH_THE_USER)
        return _workers_pipeline(plan, policy, seed, start, memory.empty, times)
    begin, finish = device_steps(plan, policy, stage)
    return DevicePrefetch(
        _workers_pipeline(plan, policy, seed, start, stage.place.empty_host, times),
        stage=stage,
        begin=begin,
        finish=finish,
        ahead=(config.prefetch_factor or 2) if config.num_workers else 1,
        timeout=config.timeout,
        forks=runs_in_processes(plan),
    )


def _workers_pipeline(
    plan: Plan,
    policy: BadSamplePolicy,
    seed: int,
    start: Address,
    allocate: Allocate,
    times: StageTimes | None,
) -> Pipeline:
    config = plan.config
    if config.num_workers == 0:
        return InlinePipeline(maker_of(plan, policy, allocate), times)
    prefetch_factor = config.prefetch_factor or 2
    if runs_in_threads(plan):
        return ThreadPipeline(
            maker_of(plan, policy, allocate),
            num_workers=config.num_workers,
            prefetch_factor=prefetch_factor,
            timeout=config.timeout,
            in_order=config.keeps_order,
            times=times,
        )
    place = np.array([start.position])
    (base_seed,) = sample_seeds(seed, start.epoch, place, Stream.WORKERS)
    segments = WorkerSegments(prefetch_factor + _BATCHES_WITH_THE_USER)
    loader = InnerLoader(
        maker_of(plan, policy, segments.empty),
        dataset=config.dataset,
        base_seed=base_seed,
        num_workers=config.num_workers,
        prefetch_factor=prefetch_factor,
        timeout=config.timeout,
        worker_init_fn=config.worker_init_fn,
        multiprocessing_context=config.multiprocessing_context,
        persistent_workers=config.persistent_workers,
        in_order=config.keeps_order,
        segments=segments,
        times=times,
    )
    return ProcessPipeline(loader)


def _obstacle_to_threads(plan: Plan) -> str | None:
    config = plan.config
    name = type(config.dataset).__name__
    if plan.has_worker_states:
        return f"{name} is iterated, or has state, in each worker by itself"
    if plan.calls is not None:
        return f"the function of {name} may draw from the global generators"
    if plan.source is None:
        method = "__getitem__" if plan.lanes is None else "read_shard"
        return f"{name} is no Source, so its {method} may draw from the global generators"
    if plan.recipes is None:
        return "its transform is a callable, which may draw from the global generators"
    if config.collation[0] not in DRAWS_NOTHING:
        return "its collate_fn may draw from the global generators"
    if config.worker_init_fn is not None:
        return "worker_init_fn is called in worker processes"
    if config.multiprocessing_context is not None:
        return "multiprocessing_context is for worker processes"
    return None
