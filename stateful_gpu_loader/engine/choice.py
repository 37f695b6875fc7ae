"""Which executor and which pipeline serve a loader: the one place that decides it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset, default_collate

from stateful_gpu_loader.datasets.callable import CallableSource
from stateful_gpu_loader.datasets.lanes import LanePlan
from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.decoders import Decoder
from stateful_gpu_loader.decoders.decoder import BatchDecoder
from stateful_gpu_loader.engine.device.device_prefetch import DevicePipeline
from stateful_gpu_loader.engine.device.images import DeviceImages
from stateful_gpu_loader.engine.device.moving import move_tensors
from stateful_gpu_loader.engine.device.stage import Stage
from stateful_gpu_loader.engine.isolation import workers_surroundings
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.makers.calls import CallExecutor
from stateful_gpu_loader.engine.makers.collate import DRAWS_NOTHING
from stateful_gpu_loader.engine.makers.drawn import DrawnExecutor
from stateful_gpu_loader.engine.makers.encoded import EncodedExecutor
from stateful_gpu_loader.engine.makers.handed import HandedSamples
from stateful_gpu_loader.engine.makers.handing import DeviceSteps, HandedBatches, HandedSteps
from stateful_gpu_loader.engine.makers.images import (
    Allocate,
    CallableExecutor,
    RecipeExecutor,
)
from stateful_gpu_loader.engine.makers.iterables import IterableExecutor
from stateful_gpu_loader.engine.makers.lanes import LaneExecutor
from stateful_gpu_loader.engine.makers.memory import BatchMemory
from stateful_gpu_loader.engine.makers.samples import SampleExecutor
from stateful_gpu_loader.engine.makers.stateful import DatasetStateExecutor
from stateful_gpu_loader.engine.pipeline import (
    Answer,
    Executor,
    Failure,
    NoBatch,
    Pipeline,
    never_stopped,
)
from stateful_gpu_loader.engine.workers.inline import InlinePipeline
from stateful_gpu_loader.engine.workers.processes import ProcessPipeline
from stateful_gpu_loader.engine.workers.shared_memory import empty_shared
from stateful_gpu_loader.engine.workers.threads import ThreadPipeline
from stateful_gpu_loader.engine.workers.torch_workers import InnerLoader
from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.randomness.philox import Stream, sample_seeds
from stateful_gpu_loader.state.bad_samples import FoundBad
from stateful_gpu_loader.state.epoch_progress import Address
from stateful_gpu_loader.state.schema import Stateful
from stateful_gpu_loader.transforms import Compose, Recipe

WORKER_TYPES = ("auto", "thread", "process")

_BATCHES_WITH_THE_USER = 2
"""The batch in the user's hands, and the one before it that is being let go."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is done to make a batch."""

    dataset: Any
    transform: Any
    """None, a Compose, or a callable; see :func:`as_transform`."""
    collate_fn: Callable[[Any], Any]
    batch_size: int | None
    """None where samples are not collated, or a user's batch sampler decides it."""
    batched: bool
    """Whether ``collate_fn`` gets a list of samples."""
    drop_last: bool
    source: Source | None
    """The dataset, or what stands for it, if it holds encoded images."""
    decoder: Decoder | None
    """Of the source's images, one by one in the workers."""
    batch_decoder: BatchDecoder | None
    """Of the source's images, in batches on the device: then the workers only read."""
    bad_samples: BadSamplePolicy
    lanes: LanePlan | None = None
    """How the dataset is read, if it is sharded."""
    calls: CallableSource | None = None
    """What makes the samples, if nothing is read."""
    only_draws: bool = False
    """Whether the numbers that the recipes draw are wanted instead of the batch."""

    @property
    def is_iterable(self) -> bool:
        """Whether each worker iterates the dataset by itself."""
        return isinstance(self.dataset, IterableDataset) and self.is_read

    @property
    def recipes(self) -> Compose | None:
        """What happens to a source's images, where it is recipes alone."""
        return recipes_of(self.transform)

    @property
    def has_worker_states(self) -> bool:
        """Whether what the workers do depends on what they did before."""
        return self.is_read and isinstance(self.dataset, (IterableDataset, Stateful))

    @property
    def is_read(self) -> bool:
        """Whether the dataset is read as torch reads any."""
        return self.lanes is None and self.calls is None


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Who does it; none of this changes a batch (law 1)."""

    num_workers: int
    worker_type: str
    prefetch_factor: int | None
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    persistent_workers: bool
    in_order: bool

    @property
    def in_flight(self) -> int:
        """Batches that they may be ahead of the user."""
        return self.num_workers * (self.prefetch_factor or 2)


def as_transform(transform: Any) -> Any:
    """None, one callable, or a list: of recipes only it becomes a Compose, else one callable.

    Raises:
        TypeError: something in it cannot be called.
    """
    if transform is None or isinstance(transform, Compose):
        return transform
    steps = list(transform) if isinstance(transform, (list, tuple)) else [transform]
    for step in steps:
        if not callable(step):
            raise TypeError(
                f"transform has {step!r} of type {type(step).__name__}, which is not callable. "
                "Remedy: pass recipes of stateful_gpu_loader.transforms, or callables"
            )
    if all(isinstance(step, (Recipe, Compose)) for step in steps):
        return Compose(steps)
    return steps[0] if len(steps) == 1 else Chain(steps)


def recipes_of(transform: Any) -> Compose | None:
    """The recipes, where a transform of :func:`as_transform` is that alone, or nothing."""
    if transform is None:
        return Compose([])
    return transform if isinstance(transform, Compose) else None


class Chain:
    """Callables one after the other."""

    def __init__(self, transforms: list[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, sample: Any) -> Any:
        for step in self.transforms:
            sample = step(sample)
        return sample


def runs_in_threads(work: Work, workers: Workers) -> bool:
    """Whether the workers are threads: by default where nothing runs but reads and recipes.

    Raises:
        ValueError: threads are demanded for work that draws from the global generators, which
            all threads share, or for arguments that only processes have.
    """
    if workers.worker_type == "process":
        return False
    obstacle = _obstacle_to_threads(work, workers)
    if obstacle is not None and workers.worker_type == "thread":
        raise ValueError(
            f"worker_type='thread' cannot serve this loader: {obstacle}. "
            "Remedy: worker_type='process' or 'auto'"
        )
    return obstacle is None


def runs_in_processes(work: Work, workers: Workers) -> bool:
    """Whether there are worker processes."""
    return workers.num_workers > 0 and not runs_in_threads(work, workers)


def check_worker_type(work: Work, workers: Workers) -> None:
    """Refuse workers that cannot do the work; see :func:`runs_in_threads`."""
    runs_in_threads(work, workers)


def make_pipeline(
    work: Work, workers: Workers, seed: int, start: Address, stage: Stage | None = None
) -> Pipeline:
    """A pipeline that is ready to be started, first on the pass that begins at ``start``.

    Args:
        stage: finishes the batches on its device; None leaves them to the workers.
    """
    if stage is None:
        memory = BatchMemory(workers.in_flight + _BATCHES_WITH_THE_USER)
        return _workers_pipeline(work, workers, seed, start, memory.empty)
    begin, finish = _steps(work, stage)
    return DevicePipeline(
        _workers_pipeline(work, workers, seed, start, stage.place.empty_host),
        stage=stage,
        begin=begin,
        finish=finish,
        ahead=(workers.prefetch_factor or 2) if workers.num_workers else 1,
        timeout=workers.timeout,
        forks=runs_in_processes(work, workers),
    )


def drawn_for(work: Work, request: Any, bad: tuple[FoundBad, ...]) -> list[dict[str, Any]]:
    """What the recipes drew for a batch that was delivered: see ``StatefulGPULoader.draws``.

    Args:
        request: that the batch was made from; a lane's with its cursor.
        bad: all samples that could not be used for it.

    Raises:
        LoaderError: no recipes drew for it, or it cannot be read again.
    """
    obstacle = _obstacle_to_draws(work)
    if obstacle is not None:
        raise LoaderError(
            f"draws() has no numbers of this loader's batches: {obstacle}. Remedy: return what "
            "was drawn with the sample; or give the images as a Source, and recipes of "
            "stateful_gpu_loader.transforms as transform"
        )
    known: dict[Any, str] = {found.index: found.reason for found in bad}
    policy = replace(work.bad_samples, known=known, reads_again=False)
    executor = _executor(replace(work, only_draws=True, bad_samples=policy), empty_shared)
    with workers_surroundings(draws=executor.uses_global_generators):
        said = executor(request, never_stopped)
    answer = said if isinstance(said, Answer) else Answer(said)
    if isinstance(answer.payload, Failure):
        answer.payload.reraise()
    if isinstance(answer.payload, NoBatch) or _places(answer.bad) != _places(bad):
        raise LoaderError(
            f"the last batch does not come out again as it was: {len(_places(bad))} samples could "
            f"not be used for it, and now it is {len(_places(answer.bad))}. Remedy: leave the "
            "data unchanged while they are read, and let a sampler yield indices whose repr() "
            "tells them apart"
        )
    drawn: list[dict[str, Any]] = answer.payload
    return drawn


def _places(bad: tuple[FoundBad, ...]) -> set[tuple[int | str, int]]:
    return {(found.index, found.position) for found in bad}


def _workers_pipeline(
    work: Work, workers: Workers, seed: int, start: Address, allocate: Allocate
) -> Pipeline:
    if workers.num_workers == 0:
        return InlinePipeline(_executor(work, allocate))
    prefetch_factor = workers.prefetch_factor or 2
    if runs_in_threads(work, workers):
        return ThreadPipeline(
            _executor(work, allocate),
            num_workers=workers.num_workers,
            prefetch_factor=prefetch_factor,
            timeout=workers.timeout,
            in_order=workers.in_order,
        )
    place = np.array([start.position])
    (base_seed,) = sample_seeds(seed, start.epoch, place, Stream.WORKERS)
    loader = InnerLoader(
        _executor(work, empty_shared),
        dataset=work.dataset,
        base_seed=base_seed,
        num_workers=workers.num_workers,
        prefetch_factor=prefetch_factor,
        timeout=workers.timeout,
        worker_init_fn=workers.worker_init_fn,
        multiprocessing_context=workers.multiprocessing_context,
        persistent_workers=workers.persistent_workers,
        in_order=workers.in_order,
    )
    return ProcessPipeline(loader)


def _steps(work: Work, stage: Stage) -> tuple[Callable[[Any], Any] | None, Callable[[Any], Any]]:
    """What the stage does with a batch: a first step, if there are two, and the last."""
    if work.source is None or work.recipes is None or work.batch_decoder is None:
        return None, partial(move_tensors, place=stage.place)
    steps: DeviceSteps = DeviceImages(
        work.source,
        decoder=work.batch_decoder,
        recipes=work.recipes,
        collate_fn=work.collate_fn,
        policy=work.bad_samples,
        place=stage.place,
    )
    if not work.is_read:
        steps = HandedSteps(steps, work.bad_samples)
    return steps.decode, steps.augment


def _executor(work: Work, allocate: Allocate) -> Executor:
    if work.is_iterable:
        return IterableExecutor(
            work.dataset,
            batch_size=work.batch_size,
            drop_last=work.drop_last,
            transform=work.transform,
            collate_fn=work.collate_fn,
            policy=work.bad_samples,
        )
    if work.lanes is not None:
        return LaneExecutor(work.lanes, _handed(work, allocate), policy=work.bad_samples)
    if work.calls is not None:
        return CallExecutor(
            work.calls,
            _handed(work, allocate),
            policy=work.bad_samples,
            batch_size=work.batch_size or 1,
            drop_last=work.drop_last,
            stacks=work.source is None
            and work.transform is None
            and work.collate_fn is default_collate,
        )
    executor = _map_executor(work, allocate)
    if work.has_worker_states:
        return DatasetStateExecutor(work.dataset, executor)
    return executor


def _handed(work: Work, allocate: Allocate) -> HandedBatches:
    """What was read or made elsewhere becomes a batch as if a dataset had been asked for it."""
    handed = replace(work, dataset=HandedSamples(), lanes=None, calls=None)
    return HandedBatches(_map_executor(handed, allocate), work.bad_samples)


def _map_executor(work: Work, allocate: Allocate) -> Executor:
    if work.only_draws and work.source is not None and work.recipes is not None:
        return DrawnExecutor(work.source, recipes=work.recipes, policy=work.bad_samples)
    if work.source is not None and work.batch_decoder is not None and work.recipes is not None:
        return EncodedExecutor(
            work.source,
            takes=work.batch_decoder.takes,
            decoder=work.batch_decoder.cpu,
            recipes=work.recipes,
            allocate=allocate,
            policy=work.bad_samples,
        )
    if work.source is None or work.decoder is None:
        return SampleExecutor(
            work.dataset,
            transform=work.transform,
            collate_fn=work.collate_fn,
            batched=work.batched,
            policy=work.bad_samples,
        )
    if work.recipes is not None:
        return RecipeExecutor(
            work.source,
            decoder=work.decoder,
            recipes=work.recipes,
            collate_fn=work.collate_fn,
            batched=work.batched,
            policy=work.bad_samples,
            allocate=allocate,
        )
    return CallableExecutor(
        work.source,
        decoder=work.decoder,
        transform=work.transform,
        collate_fn=work.collate_fn,
        batched=work.batched,
        policy=work.bad_samples,
    )


def _obstacle_to_draws(work: Work) -> str | None:
    name = type(work.dataset).__name__
    if work.source is None:
        return f"{name} is no Source of encoded images, so only its own code knows what it drew"
    if work.recipes is None:
        return "its transform is, or holds, a callable of your own, which draws unseen"
    if work.has_worker_states:
        return f"{name} has a state, which reading the images' sizes again would move"
    return None


def _obstacle_to_threads(work: Work, workers: Workers) -> str | None:
    name = type(work.dataset).__name__
    if work.has_worker_states:
        return f"{name} is iterated, or has state, in each worker by itself"
    if work.calls is not None:
        return f"the function of {name} may draw from the global generators"
    if work.source is None:
        method = "__getitem__" if work.lanes is None else "read_shard"
        return f"{name} is no Source, so its {method} may draw from the global generators"
    if work.recipes is None:
        return "its transform is a callable, which may draw from the global generators"
    if work.collate_fn not in DRAWS_NOTHING:
        return "its collate_fn may draw from the global generators"
    if workers.worker_init_fn is not None:
        return "worker_init_fn is called in worker processes"
    if workers.multiprocessing_context is not None:
        return "multiprocessing_context is for worker processes"
    return None
