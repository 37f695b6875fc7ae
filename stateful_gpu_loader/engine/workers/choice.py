"""Chooses a loader's workers: the user's thread, threads, processes, or other machines."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from stateful_gpu_loader.engine.config import LoaderConfig
from stateful_gpu_loader.engine.device.device_prefetch import DevicePrefetch
from stateful_gpu_loader.engine.device.stage import Stage
from stateful_gpu_loader.engine.isolation import isolated
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.makers.choice import device_steps, maker_of
from stateful_gpu_loader.engine.makers.collate import DRAWS_NOTHING
from stateful_gpu_loader.engine.makers.encoded import ExpectedBytes
from stateful_gpu_loader.engine.makers.images import Allocate
from stateful_gpu_loader.engine.makers.last_recipes import divided
from stateful_gpu_loader.engine.makers.memory import BatchMemory, empty_host, empty_pinned
from stateful_gpu_loader.engine.pipeline import Maker, Pipeline
from stateful_gpu_loader.engine.plan import Plan
from stateful_gpu_loader.engine.stats import Tally
from stateful_gpu_loader.engine.torch_names import with_sharding
from stateful_gpu_loader.engine.workers.cluster import Cluster, RemoteWorkers
from stateful_gpu_loader.engine.workers.dispatch import Dispatch
from stateful_gpu_loader.engine.workers.inline import InlinePipeline
from stateful_gpu_loader.engine.workers.packing import pack, pack_by_value, unpack_by_value
from stateful_gpu_loader.engine.workers.pool import PoolPipeline
from stateful_gpu_loader.engine.workers.processes import ProcessCluster
from stateful_gpu_loader.engine.workers.segments import WorkerSegments
from stateful_gpu_loader.engine.workers.threads import ThreadCluster
from stateful_gpu_loader.engine.workers.worker_main import SeedOfWorkers, WorkerAdapter
from stateful_gpu_loader.engine.workers.worker_start import method_of
from stateful_gpu_loader.state.epoch_progress import Address
from stateful_gpu_loader.transforms.geometry.resize import assume_resizes_bytes, resizes_bytes

_BATCHES_WITH_THE_USER = 2
"""Number of batches held by the user: the present and the previous one."""


_MAX_THREADS = 4
"""Number of threads in a worker process beyond which they wait for the GIL."""


def runs_in_threads(plan: Plan) -> bool:
    """Whether the workers are threads of this process; raises as :func:`threads_of_process`."""
    return threads_of_process(plan) is None


def threads_of_process(plan: Plan) -> int | None:
    """Return the number of workers that are threads of one worker process.

    Returns: None if the workers are threads of this process, the default for few workers that only
    read data and apply recipes.

    Raises:
        ValueError: threads, here or on other machines, were requested for work that draws from the
            global generators, which all threads share, or with arguments that only processes
            support.
    """
    config = plan.config
    worker_type, remote, most = config.worker_type, config.remote, config.threads_per_process or 1
    if most > 1:
        _check_threads_per_process(plan, most)
    if remote is not None:
        _check_remote(plan, remote)
        return remote.threads
    if worker_type == "process" or most > 1:
        return _largest_divisor(config.num_workers, most)
    obstacle = _obstacle_to_threads(plan)
    if obstacle is not None:
        if worker_type == "thread":
            raise ValueError(
                f"worker_type='thread' cannot serve this loader: {obstacle}. "
                "Remedy: worker_type='process' or 'auto'"
            )
        return 1
    is_free = worker_type == "auto" and config.threads_per_process is None
    if is_free and config.num_workers > _MAX_THREADS and not _best_in_one_process(plan):
        return _largest_divisor(config.num_workers, _MAX_THREADS)
    return None


def _best_in_one_process(plan: Plan) -> bool:
    """Whether workers that could be threads of any process are best in this process.

    Readers for a device read into page-locked memory, and processes that are not forked take
    seconds to start.
    """
    suits_processes = plan.source is not None and plan.source.suits_processes
    return not suits_processes or plan.device is not None or method_of(None) != "fork"


def _largest_divisor(number: int, most: int) -> int:
    return max(n for n in range(1, most + 1) if number % n == 0)


def runs_in_processes(plan: Plan) -> bool:
    """Whether the workers are processes of this machine that this process starts."""
    return plan.config.num_workers > 0 and plan.config.remote is None and not runs_in_threads(plan)


def make_pipeline(
    plan: Plan,
    policy: BadSamplePolicy,
    seed: int,
    start: Address,
    stage: Stage | None = None,
    times: Tally | None = None,
) -> Pipeline:
    """Return a pipeline that is not started; its first pass will begin at ``start``.

    Args:
        stage: finishes the batches on its device; None leaves that to the workers.
        times: receives the seconds of each stage.
    """
    config = plan.config
    if stage is None:
        memory = BatchMemory(config.in_flight + _BATCHES_WITH_THE_USER)
        return _workers_pipeline(plan, policy, seed, start, memory.empty, None, times)
    begin, finish = device_steps(plan, policy, stage)
    last = None if config.remote is None else divided(plan)[1]
    if last is not None:
        finish = partial(last.on_device, place=stage.place)
    return DevicePrefetch(
        _workers_pipeline(plan, policy, seed, start, stage.place.empty_host, stage.expected, times),
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
    expected: ExpectedBytes | None,
    times: Tally | None,
) -> Pipeline:
    config = plan.config
    if config.num_workers == 0:
        return InlinePipeline(maker_of(plan, policy, allocate, expected), times)
    tally = times or Tally()
    if runs_in_threads(plan):
        return _threads(plan, maker_of(plan, policy, allocate, expected), tally)
    seeds = SeedOfWorkers(seed=seed, epoch=start.epoch, rank=plan.rank)
    if config.remote is not None:
        return _remote_workers(plan, config.remote, policy, seeds, allocate, tally)
    return _processes(plan, policy, seeds, tally)


def _threads(plan: Plan, maker: Maker, tally: Tally) -> Pipeline:
    """Return a pipeline over one worker with all threads, started again for each pass."""
    config = plan.config
    return _pool(
        config,
        partial(ThreadCluster, maker, threads=config.num_workers, times=tally),
        num_workers=1,
        depth=config.in_flight,
        threads=config.num_workers,
        persistent=False,
        tally=tally,
    )


def _processes(plan: Plan, policy: BadSamplePolicy, seeds: SeedOfWorkers, tally: Tally) -> Pipeline:
    config = plan.config
    threads = threads_of_process(plan) or 1
    depth, num_processes = config.in_flight_a_worker * threads, config.num_workers // threads
    segments = WorkerSegments(depth + _BATCHES_WITH_THE_USER)
    adapter = WorkerAdapter(
        maker_of(plan, policy, segments.empty),
        config.dataset,
        _initialise(plan),
        partial(pack, segments=segments),
        segments,
        seeds,
    )
    connect = partial(
        ProcessCluster,
        adapter,
        num_workers=num_processes,
        threads=threads,
        base_seed=seeds.base(),
        multiprocessing_context=config.multiprocessing_context,
        tally=tally,
    )
    return _pool(
        config,
        connect,
        num_workers=num_processes,
        depth=depth,
        threads=threads,
        takes_turns=config.keeps_order,
        persistent=config.persistent_workers,
        tally=tally,
    )


def _remote_workers(
    plan: Plan,
    remote: RemoteWorkers,
    policy: BadSamplePolicy,
    seeds: SeedOfWorkers,
    allocate: Allocate,
    tally: Tally,
) -> Pipeline:
    config = plan.config
    work, last = divided(plan)
    adapter = WorkerAdapter(
        maker_of(work, policy, empty_host),
        config.dataset,
        _initialise(plan),
        partial(pack_by_value, images_apart=last is not None, pickler=remote.pickler),
        seeds=seeds,
    )
    if config.pin_memory and plan.device is None and torch.accelerator.is_available():
        allocate = empty_pinned
    elif plan.source is None:
        # Sums in the user's code may depend on a batch's alignment.
        allocate = empty_host
    finish = None if last is None or plan.device is not None else last.on_host
    return _pool(
        config,
        partial(remote.connect, adapter, num_workers=config.num_workers, base_seed=seeds.base()),
        num_workers=config.num_workers,
        depth=config.in_flight_a_worker,
        threads=remote.threads,
        persistent=config.persistent_workers,
        unpack=partial(unpack_by_value, allocate=allocate, finish=finish),
        tally=tally,
    )


def _pool(
    config: LoaderConfig,
    connect: Callable[[], Cluster],
    *,
    num_workers: int,
    depth: int,
    threads: int,
    takes_turns: bool = False,
    persistent: bool,
    unpack: Callable[[Any], Any] | None = None,
    tally: Tally,
) -> Pipeline:
    """Return the pipeline over a cluster's workers; arguments as for Dispatch and PoolPipeline."""
    dispatch = partial(
        Dispatch,
        connect,
        num_workers=num_workers,
        limit=config.in_flight,
        depth=depth,
        threads=threads,
        in_order=config.keeps_order,
        takes_turns=takes_turns,
        max_losses=config.max_worker_restarts,
        tally=tally,
    )
    return PoolPipeline(
        dispatch, timeout=config.timeout, persistent=persistent, unpack=unpack, tally=tally
    )


def _initialise(plan: Plan) -> Callable[[int], None] | None:
    """Return the function that initialises a worker in another process."""
    initialise = with_sharding(plan.config.dataset, plan.config.worker_init_fn)
    if plan.recipes is not None and plan.recipes.recipes and isolated(resizes_bytes, draws=False):
        return partial(_initialise_without_torchvision, initialise)
    return initialise


def _initialise_without_torchvision(initialise: Callable[[int], None] | None, worker: int) -> None:
    """Initialise a worker without importing torchvision."""
    assume_resizes_bytes()
    if initialise is not None:
        initialise(worker)


def _check_remote(plan: Plan, remote: RemoteWorkers) -> None:
    """Refuse arguments that workers on other machines do not support.

    Raises:
        ValueError: the threads would share generators, or a start method for processes is given.
    """
    config = plan.config
    if config.multiprocessing_context is not None:
        raise ValueError(
            f"multiprocessing_context={config.multiprocessing_context!r} is for worker processes "
            f"of this machine, but worker_type={config.worker_type!r} starts other workers. "
            "Remedy: leave one of them out"
        )
    obstacle = _obstacle_to_threads(plan)
    if remote.threads > 1 and obstacle is not None:
        raise ValueError(
            f"threads={remote.threads} cannot serve this loader: {obstacle}. Remedy: threads=1 "
            "and more workers"
        )


def _check_threads_per_process(plan: Plan, threads: int) -> None:
    """Refuse several threads in a process where they are not supported.

    Raises:
        ValueError: the workers are not processes, or their work draws from the global generators,
            which the threads of a process share.
    """
    config, what = plan.config, f"threads_per_process={threads}"
    if config.worker_type == "thread" or config.remote is not None:
        raise ValueError(
            f"{what} is for worker processes of this machine, but "
            f"worker_type={config.worker_type!r} starts other workers. Remedy: leave one of them "
            "out"
        )
    obstacle = _obstacle_to_threads(plan, in_this_process=False)
    if obstacle is not None:
        raise ValueError(
            f"{what} cannot serve this loader: {obstacle}. Remedy: threads_per_process=1"
        )


def _obstacle_to_threads(plan: Plan, *, in_this_process: bool = True) -> str | None:
    config = plan.config
    name = type(config.dataset).__name__
    if plan.has_worker_states:
        return f"{name} is iterated, or has a state, in each worker"
    if plan.calls is not None:
        return f"the function of {name} may draw from the global generators"
    if plan.source is None:
        method = "__getitem__" if plan.lanes is None else "read_shard"
        return f"{name} is not a Source, so its {method} may draw from the global generators"
    if plan.recipes is None:
        return "its transform is a callable, which may draw from the global generators"
    if config.collation[0] not in DRAWS_NOTHING:
        return "its collate_fn may draw from the global generators"
    if in_this_process and config.worker_init_fn is not None:
        return "worker_init_fn is called in worker processes"
    if in_this_process and config.multiprocessing_context is not None:
        return "multiprocessing_context is for worker processes"
    return None
