"""Chooses the maker of a loader's batches, and the steps on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

from torch.utils.data import default_collate

from stateful_gpu_loader.datasets.source import Source, from_the_start
from stateful_gpu_loader.decoders import BatchDecoder, Decoder
from stateful_gpu_loader.engine.device.images import DeviceImages, ReadyDeviceImages
from stateful_gpu_loader.engine.device.moving import move_tensors
from stateful_gpu_loader.engine.device.stage import Stage
from stateful_gpu_loader.engine.isolation import isolated
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.makers.encoded import EncodedMaker, ExpectedBytes
from stateful_gpu_loader.engine.makers.images import (
    Allocate,
    CallableMaker,
    DrawnBatch,
    DrawsMaker,
    ImageMaker,
)
from stateful_gpu_loader.engine.makers.iterables import IterableMaker
from stateful_gpu_loader.engine.makers.read_ahead import ReadsAhead
from stateful_gpu_loader.engine.makers.ready_batches import ReadyBatches
from stateful_gpu_loader.engine.makers.samples import DatasetStateMaker, SampleMaker
from stateful_gpu_loader.engine.pipeline import Answer, Failure, Maker, NoBatch, never_stopped
from stateful_gpu_loader.engine.plan import Plan
from stateful_gpu_loader.engine.readers.calls import CallReader
from stateful_gpu_loader.engine.readers.reading import ReadySamples
from stateful_gpu_loader.engine.readers.sharded import ShardedReader
from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.records import Request
from stateful_gpu_loader.state.bad_samples import FoundBad
from stateful_gpu_loader.state.schema import Stateful
from stateful_gpu_loader.transforms import Compose


def policy_of(plan: Plan, known: Mapping[Any, str]) -> BadSamplePolicy:
    """Return the loader's policy for bad samples.

    Args:
        known: indices that need not be read, with the reasons.
    """
    return BadSamplePolicy(
        mode=plan.config.on_bad_sample,
        order=None if plan.calls is not None else plan.order,
        known=known,
        reads_again=isinstance(plan.config.dataset, Stateful),
    )


def maker_of(
    plan: Plan, policy: BadSamplePolicy, allocate: Allocate, expected: ExpectedBytes | None = None
) -> Maker:
    """Return the maker of the loader's batches.

    Args:
        allocate: allocates memory for finished batches of images.
        expected: size of encoded batches, from earlier passes.
    """
    return _maker_of(plan, policy, partial(_map_maker, plan, policy, allocate, expected))


def _maker_of(plan: Plan, policy: BadSamplePolicy, map_maker: Callable[[Any], Maker]) -> Maker:
    config = plan.config
    if plan.is_iterable:
        return IterableMaker(
            config.dataset,
            batch_size=config.batch_size,
            drop_last=config.drop_last,
            transform=plan.transform,
            collate_fn=config.collate_fn,
            policy=policy,
        )
    if plan.lanes is not None:
        return ReadyBatches(
            ShardedReader(plan.lanes, policy=policy), map_maker(ReadySamples()), policy
        )
    if plan.calls is not None:
        stacks = plan.source is None and plan.transform is None
        reader = CallReader(
            plan.calls,
            policy=policy,
            batch_size=config.batch_size or 1,
            drop_last=config.drop_last,
            stacks=stacks and config.collate_fn is default_collate,
        )
        return ReadyBatches(reader, map_maker(ReadySamples()), policy)
    maker = map_maker(config.dataset)
    if plan.source is not None and plan.order is None:
        maker = FromTheStart(plan.source, maker)
    if plan.source is not None and plan.source.is_remote:
        maker = ReadsAhead(plan.source, maker, order=plan.order, num_workers=config.num_workers)
    if plan.has_worker_states:
        return DatasetStateMaker(config.dataset, maker)
    return maker


class FromTheStart:
    """Replaces the negative indices of a user's sampler, which count from the end of a source.

    So reading and the record of bad samples have one index for each sample; the sampler's digest
    covers the original ones.
    """

    def __init__(self, source: Source, maker: Maker) -> None:
        self._source = source
        self._maker = maker

    @property
    def uses_global_generators(self) -> bool:
        return self._maker.uses_global_generators

    def __call__(self, request: Request, check: Callable[[], None]) -> Any:
        indices = [
            from_the_start(index, self._source) if hasattr(index, "__index__") else index
            for index in request.index_list()
        ]
        return self._maker(request._replace(indices=indices), check)


def _map_maker(
    plan: Plan,
    policy: BadSamplePolicy,
    allocate: Allocate,
    expected: ExpectedBytes | None,
    dataset: Any,
) -> Maker:
    """Return the maker for a map-style dataset, or for samples from a reader."""
    collate_fn, batched = plan.config.collation
    if plan.source is None:
        return SampleMaker(
            dataset,
            transform=plan.transform,
            collate_fn=collate_fn,
            batched=batched,
            policy=policy,
        )
    if plan.finishes_images:
        decoder = cast("BatchDecoder", plan.decoder)
        return EncodedMaker(
            plan.source,
            takes=decoder.takes,
            decoder=decoder.cpu,
            recipes=cast("Any", plan.recipes),
            allocate=allocate,
            policy=policy,
            expected=expected,
            leaves_out_exif=decoder.acts_on_exif,
        )
    if plan.recipes is not None:
        return ImageMaker(
            plan.source,
            decoder=cast("Decoder", plan.decoder),
            recipes=plan.recipes,
            collate_fn=collate_fn,
            batched=batched,
            policy=policy,
            allocate=allocate,
        )
    return CallableMaker(
        plan.source,
        decoder=cast("Decoder", plan.decoder),
        transform=plan.transform,
        collate_fn=collate_fn,
        batched=batched,
        policy=policy,
    )


def device_steps(
    plan: Plan, policy: BadSamplePolicy, stage: Stage
) -> tuple[Callable[[Any], Any] | None, Callable[[Any], Any]]:
    """Return the stage's first step for a batch, or None, and its last."""
    if plan.source is None or plan.recipes is None or not plan.finishes_images:
        return None, partial(move_tensors, place=stage.place)
    kind = DeviceImages if plan.is_read else ReadyDeviceImages
    steps = kind(
        plan.source,
        decoder=cast("BatchDecoder", plan.decoder),
        recipes=plan.recipes,
        collate_fn=plan.config.collation[0],
        policy=policy,
        place=stage.place,
    )
    return steps.decode, steps.augment


def drawn_for(plan: Plan, request: Any, bad: tuple[FoundBad, ...]) -> list[dict[str, Any]]:
    """Return what the recipes drew for a delivered batch; see ``StatefulGPULoader.draws``.

    Args:
        request: request of the batch; for a lane, with its cursor.
        bad: all bad samples of the batch.

    Raises:
        LoaderError: no recipes drew numbers for it, or it cannot be read again.
    """
    recipes = plan.recipes
    obstacle = _obstacle_to_draws(plan)
    if obstacle is not None or recipes is None:
        raise LoaderError(
            f"draws() has no numbers for this loader's batches: {obstacle}. Remedy: return the "
            "drawn numbers with the sample; or use a Source of images, with recipes of "
            "stateful_gpu_loader.transforms as transform"
        )
    batch = read_again(plan, request, bad, recipes)
    pairs = zip(recipes.recipes, batch.drawn.draws, strict=True)
    return [recipe.named(numbers) for recipe, numbers in pairs]


def read_again(plan: Plan, request: Any, bad: tuple[FoundBad, ...], recipes: Compose) -> DrawnBatch:
    """Read the encoded samples of a delivered batch again, and repeat the draws.

    Args:
        plan: a plan with a source that has no state.
        request: request of the batch; for a lane, with its cursor.
        bad: all bad samples of the batch.
        recipes: the plan's recipes; other recipes if those are not known.

    Raises:
        LoaderError: the batch differs when it is read again.
    """
    source = cast("Source", plan.source)
    known: dict[Any, str] = {sample.index: sample.reason for sample in bad}
    policy = replace(policy_of(plan, known), reads_again=False)
    draws = DrawsMaker(source, recipes=recipes, policy=policy)
    maker = _maker_of(plan, policy, lambda dataset: draws)
    result = isolated(maker, request, never_stopped, draws=maker.uses_global_generators)
    answer = result if isinstance(result, Answer) else Answer(result)
    if isinstance(answer.payload, Failure):
        answer.payload.reraise()
    if isinstance(answer.payload, NoBatch) or _places(answer.bad) != _places(bad):
        raise LoaderError(
            f"the last batch differs when it is read again: it had {len(_places(bad))} bad "
            f"samples, and now it has {len(_places(answer.bad))}. Remedy: leave the data unchanged "
            "while they are read, and let a sampler yield indices that repr() distinguishes"
        )
    drawn: DrawnBatch = answer.payload
    return drawn


def _places(bad: tuple[FoundBad, ...]) -> set[tuple[int | str, int]]:
    return {(sample.index, sample.position) for sample in bad}


def _obstacle_to_draws(plan: Plan) -> str | None:
    name = type(plan.config.dataset).__name__
    if plan.source is None:
        return f"{name} is not a Source of encoded images, so only its own code knows its draws"
    if plan.recipes is None:
        return "its transform is, or holds, a callable of yours, whose draws are not known"
    if plan.has_worker_states:
        return f"{name} has a state, which reading the images' sizes again would change"
    return None
