"""Batches of any map-style dataset, with generators seeded for each sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils.data import StackDataset, Subset

from stateful_gpu_loader.engine.makers.bad_sample_policy import (
    BadSamplePolicy,
    BadSampleReplacer,
    Slot,
    is_bad,
    next_draws,
    retried,
)
from stateful_gpu_loader.engine.makers.collate import (
    DRAWS_NOTHING,
    FIXED_SIZE,
    STACKS_IMAGES,
    name_of,
)
from stateful_gpu_loader.engine.makers.own_generators import SampleGenerators, inner_datasets
from stateful_gpu_loader.engine.pipeline import Maker, Stopped, never_stopped, noting_sample
from stateful_gpu_loader.engine.readers.reading import ReadySamples
from stateful_gpu_loader.engine.stats import stage
from stateful_gpu_loader.engine.user_objects import load_user_state, state_of
from stateful_gpu_loader.randomness.draw_rule import DrawRule
from stateful_gpu_loader.randomness.global_generators import (
    caller_generators_restored,
    seed_global_generators,
)
from stateful_gpu_loader.randomness.philox import SeedBlock, Stream, sample_seeds
from stateful_gpu_loader.records import Request, SampleKey, WorkerStart
from stateful_gpu_loader.state.schema import Stateful
from stateful_gpu_loader.state.user_states import freeze, thaw, worker_state


class SampleMaker:
    """Calls ``dataset[index]``, transform and collate with generators seeded from the sample's key.

    So a dataset that draws from ``random``, ``numpy.random`` or torch returns the same sample in
    any worker. A method ``set_sample_seed(int)`` of an object with private generators, anywhere
    inside the dataset or ``transform``, is called before each item, or each call of the dataset's
    own ``__getitems__``. Transforms of albumentations are seeded at the same times.

    Seeding takes 8 us per sample, and most datasets draw nothing. So if none of a pass's first
    samples draws, later samples are only watched. If a later batch does draw, it is made again with
    seeds, with a warning. Objects with a state or private generators are always seeded. An
    attribute ``draws`` of the dataset and the transform, True or False, decides instead.

    Args:
        transform: a callable on one whole sample, or None.
        collate_fn: makes the batch from a list of samples, or converts one sample.
        batched: False passes each request's only sample to ``collate_fn``, as with
            ``batch_size=None``.
    """

    is_bad: Callable[[BaseException], bool] = staticmethod(is_bad)
    """Whether an exception means a bad sample."""

    def __init__(
        self,
        dataset: Any,
        *,
        transform: Callable[[Any], Any] | None,
        collate_fn: Callable[[Any], Any],
        batched: bool,
        policy: BadSamplePolicy,
    ) -> None:
        self._dataset = dataset
        self._transform = transform
        self._collate_fn = collate_fn
        self._batched = batched
        self._native = batched and has_native_batches(dataset)
        self._generators = SampleGenerators(dataset, transform)
        self._seeds = SeedBlock(Stream.SAMPLE_GENERATORS)
        self._policy = policy
        self._rule = DrawRule(type(dataset).__name__, self._known_to_draw())

    @property
    def uses_global_generators(self) -> bool:
        return self._rule.seeds or self._collate_fn not in DRAWS_NOTHING

    def _known_to_draw(self) -> bool | None:
        if type(self) is not SampleMaker or self._native or self._generators.has_private:
            return True
        if isinstance(self._dataset, Stateful):
            return True
        # A reader has already seeded its samples.
        drawing = [] if isinstance(self._dataset, ReadySamples) else [self._dataset]
        drawing += [] if self._transform is None else [self._transform]
        declared = [getattr(part, "draws", None) for part in drawing]
        if any(part is True for part in declared):
            return True
        return False if all(part is False for part in declared) else None

    def __call__(self, request: Request, check: Callable[[], None]) -> Any:
        if not self._rule.seeds:
            with stage("read"):
                samples = self._unseeded(request, check)
            if samples is not None:
                return self._collated(request, request.keys, samples)
            return self._retry(request, check)
        return self._one_by_one(request, check)

    def _unseeded(self, request: Request, check: Callable[[], None]) -> list[Any] | None:
        """Return the samples; None if all must be made one by one."""
        indices = request.index_list()
        if self._policy.knows_any(indices):
            return None
        try:
            samples = self._rule.unseeded(lambda: self._made(indices, check))
        except Stopped:
            raise
        except Exception:
            return None
        return None if self._rule.draws else samples

    def _retry(self, request: Request, check: Callable[[], None]) -> Any:
        """Make a batch one by one, with seeds if allowed, or if it draws."""
        if not self._rule.may_seed:
            try:
                batch = self._one_by_one(request, check)
            except Exception:
                if not self._rule.draws:
                    raise
            else:
                if not self._rule.draws:
                    return batch
        with caller_generators_restored():
            return self._one_by_one(request, check)

    def _made(self, indices: list[Any], check: Callable[[], None]) -> list[Any]:
        """Return these samples, if possible at torch's own cost."""
        dataset = self._dataset
        asked = indices if check is never_stopped else _checked(indices, check)
        if self._transform is None:
            return [dataset[index] for index in asked]
        return [self._transformed(dataset[index]) for index in asked]

    def _transformed(self, sample: Any) -> Any:
        if self._transform is None:
            return sample
        with stage("augment"):
            return self._transform(sample)

    def _one_by_one(self, request: Request, check: Callable[[], None]) -> Any:
        seeds = self._seeds.of(request.seed, request.epoch, request.positions)
        replacer = BadSampleReplacer(
            self._policy,
            request,
            is_bad=self.is_bad,
            has_drawn=lambda slot: self._has_drawn(
                batch_seed(request, Stream.GETITEMS) if self._native else seeds[slot.number]
            ),
        )

        def read(slot: Slot) -> None:
            check()
            slot.sample = self._sample(slot.key, seeds[slot.number])

        def read_all() -> Any:
            if self._native:
                return self._native_batch(replacer, request, seeds, check)
            return [slot.sample for slot in replacer.fill_all(read)]

        with stage("read"):
            samples = self._rule.watched(read_all)
        kept = replacer.kept
        return replacer.answer(
            self._collated(request, lambda: [slot.key for slot in kept], samples)
        )

    def _collated(
        self, request: Request, keys_of: Callable[[], list[SampleKey]], samples: Any
    ) -> Any:
        try:
            return collate(request, samples, self._collate_fn, batched=self._batched)
        except RuntimeError as error:
            if self._collate_fn not in STACKS_IMAGES or not isinstance(samples, list):
                raise
            shapes, keys = [_shape_of(sample) for sample in samples], keys_of()
            if len(set(shapes)) == 1 or len(shapes) != len(keys):
                raise
            other = next(i for i, shape in enumerate(shapes) if shape != shapes[0])
            raise RuntimeError(
                f"{error}. {name_of(self._dataset, keys[0].index)} gives {shapes[0]}, "
                f"{name_of(self._dataset, keys[other].index)} gives {shapes[other]}. "
                f"{FIXED_SIZE.format('transform')}"
            ) from error

    def fetch(self, key: SampleKey) -> Any:
        return self._transformed(self._dataset[key.index])

    def _sample(self, key: SampleKey, seed: int) -> Any:
        try:
            return self._rule.seeded(partial(self._generators.seed, seed), lambda: self.fetch(key))
        except Exception:
            # Entered only after an error, because it is slow.
            with noting_sample(key):
                raise

    def _native_batch(
        self,
        replacer: BadSampleReplacer,
        request: Request,
        seeds: list[int],
        check: Callable[[], None],
    ) -> Any:
        """Fetch a batch with one call; if it fails, find the bad samples one by one and call again.

        If a sample is known to be bad, the first call is skipped. The last call fetches all samples
        again, because a batch may draw random numbers for all its samples together.
        """

        def together(slots: list[Slot]) -> Any:
            self._generators.seed(batch_seed(request, Stream.GETITEMS))
            samples = self._dataset.__getitems__([slot.key.index for slot in slots])
            if self._transform is None:
                return samples
            transformed = []
            for slot, sample in zip(slots, samples, strict=True):
                check()
                with noting_sample(slot.key), stage("augment"):
                    self._generators.seed(seeds[slot.number])
                    transformed.append(self._transform(sample))
            return transformed

        def alone(slot: Slot) -> None:
            check()
            together([slot])

        if not replacer.replaces:
            return together(replacer.kept)
        if not replacer.knows_any():
            try:
                return retried(lambda: together(replacer.kept), is_bad=self.is_bad)
            except Exception as error:
                if not self.is_bad(error):
                    raise
        slots = replacer.fill_all(alone)
        return retried(lambda: together(slots), is_bad=self.is_bad)

    def _has_drawn(self, seed: int) -> bool:
        """Whether anything may have been drawn since the generators were seeded with ``seed``.

        Private generators, and generators that may not be seeded, count as drawn from.
        """
        if not self._rule.may_seed:
            return self._rule.draws is None or self._rule.leaves_alone
        with caller_generators_restored():
            following = next_draws()
            seed_global_generators(seed)
            return self._generators.has_private or next_draws() != following


def _checked(indices: list[Any], check: Callable[[], None]) -> Iterator[Any]:
    for index in indices:
        check()
        yield index


def collate(
    request: Request, samples: Any, collate_fn: Callable[[Any], Any], *, batched: bool
) -> Any:
    """Collate with generators seeded from the batch's first position."""
    if collate_fn not in DRAWS_NOTHING:
        seed_global_generators(batch_seed(request, Stream.COLLATE))
    with stage("collate"):
        return collate_fn(samples if batched else samples[0])


def _shape_of(sample: Any) -> str | None:
    """Return the shape of a sample's first tensor as text, or None."""
    values = list(sample.values()) if isinstance(sample, dict) else sample
    parts = values if isinstance(values, (list, tuple)) else [values]
    return next((str(list(part.shape)) for part in parts if isinstance(part, Tensor)), None)


def batch_seed(request: Request, stream: Stream) -> int:
    """Return a 64-bit seed for the request's first position."""
    return sample_seeds(request.seed, request.epoch, request.positions[:1], stream)[0]


def has_native_batches(dataset: Any) -> bool:
    """Whether the dataset fetches batches by its own ``__getitems__``.

    torch's Subset and StackDataset, which only pass the indices on, do not count unless a dataset
    inside has its own.

    >>> has_native_batches(Subset([10, 20, 30], [0, 2]))
    False
    """
    own = getattr(type(dataset), "__getitems__", None)
    if own in (Subset.__getitems__, StackDataset.__getitems__):
        return any(has_native_batches(part) for part in inner_datasets(dataset))
    return callable(getattr(dataset, "__getitems__", None))


class DatasetStateMaker:
    """Adds the state of the dataset to another maker.

    Generators are still seeded for each sample.
    """

    def __init__(self, dataset: Any, maker: Maker) -> None:
        self._dataset = dataset
        self._maker = maker

    @property
    def uses_global_generators(self) -> bool:
        return self._maker.uses_global_generators

    def begin(self, start: WorkerStart) -> None:
        """Load the dataset's state, if the pass continues from one."""
        if start.state is not None:
            load_user_state("dataset", self._dataset, thaw(start.state)["dataset"])

    def __call__(self, request: Request, check: Callable[[], None]) -> Any:
        return self._maker(request, check)

    def snapshot(self) -> bytes:
        state = worker_state(dataset=state_of(self._dataset))
        return freeze(state, type(self._dataset).__name__)
