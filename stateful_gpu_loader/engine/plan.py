"""Plan: how batches are made, derived from the configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeAlias

import torch
from torch.utils.data import IterableDataset

from stateful_gpu_loader.datasets import as_source
from stateful_gpu_loader.datasets.callable import CallableSource
from stateful_gpu_loader.datasets.lanes import LaneDivision, LanePlan
from stateful_gpu_loader.datasets.sharded import EncodedShards, ShardedDataset
from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.decoders import BatchDecoder, Decoder, make_batch_decoder, make_decoder
from stateful_gpu_loader.decoders.cpu_share import SharedOut
from stateful_gpu_loader.decoders.scaled import ScaledDecoder
from stateful_gpu_loader.engine.arguments import (
    as_device,
    check_division,
    check_image_transform,
    check_scaled_decoding,
    check_targets,
)
from stateful_gpu_loader.engine.batch_transform import BatchTransform
from stateful_gpu_loader.engine.config import LoaderConfig
from stateful_gpu_loader.engine.makers.collate import STACKS_IMAGES
from stateful_gpu_loader.engine.readers.reading import ReadyImages
from stateful_gpu_loader.engine.sampler_link import follow_pass, key_ranks, ranks_of
from stateful_gpu_loader.engine.schedules.lane_schedule import LaneSchedule
from stateful_gpu_loader.engine.schedules.map_schedule import Feed, MapSchedule
from stateful_gpu_loader.engine.schedules.positions import Division, OrderSchedule, PositionFeed
from stateful_gpu_loader.engine.schedules.sampler_feed import SamplerFeed, SamplerUse
from stateful_gpu_loader.engine.schedules.sampler_snapshot import SamplerSnapshot
from stateful_gpu_loader.engine.schedules.schedule import Schedule
from stateful_gpu_loader.engine.schedules.worker_schedule import WorkerSchedule
from stateful_gpu_loader.randomness.generator_state import generator_from_text
from stateful_gpu_loader.randomness.seed import SettledSeed
from stateful_gpu_loader.samplers import (
    CallOrder,
    EpochOrder,
    Listed,
    PositionOrder,
    is_map,
    order_of,
)
from stateful_gpu_loader.state.epoch_progress import Address, Passes
from stateful_gpu_loader.state.schema import Stateful
from stateful_gpu_loader.state.torchdata import shuffled_indices
from stateful_gpu_loader.transforms import Compose, Recipe

AnyDecoder: TypeAlias = Decoder | BatchDecoder | None
"""A decoder for single images in the workers, a decoder for batches on the device, or none."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    config: LoaderConfig
    order: PositionOrder | None
    """The loader's own order; None if a user's sampler or an iterable dataset decides."""
    memory: SamplerSnapshot | None
    """Snapshot of a user's sampler; None without one."""
    source: Source | None
    """The dataset, or its adapter, if it holds encoded images."""
    transform: Any
    """None, a Compose, or one callable; see :func:`as_transform`."""
    device: torch.device | None
    """Device that batches are delivered on; None means the CPU."""
    finishes_images: bool
    """Whether the device decodes and augments."""
    decoder: AnyDecoder
    """Decoder of the source's images."""
    batch_transform: BatchTransform | None
    lanes: LanePlan | None
    """The dataset's lanes, if it is sharded."""
    calls: CallableSource | None
    """The dataset, if a function makes its samples."""

    @classmethod
    def of(cls, config: LoaderConfig) -> Plan:
        """Return the plan of a configuration.

        Raises:
            ValueError, TypeError: two arguments exclude each other.
        """
        lanes = None
        if isinstance(config.dataset, ShardedDataset):
            lanes = LanePlan(config.dataset, shuffle=bool(config.shuffle))
        is_mapped = is_map(config.dataset)
        order = order_of(config.sampler) if is_mapped and not config.has_batch_sampler else None
        calls = config.calls
        if calls is not None:
            order = CallOrder(calls.length)
        check_division(bool(order or lanes), config.num_replicas)
        has_sampler = is_mapped and order is None
        source, transform = as_source(config.dataset), as_transform(config.transform)
        has_images = calls is not None and calls.image is not None
        if has_images or isinstance(config.dataset, EncodedShards):
            source = ReadyImages()
        recipes = recipes_of(transform)
        check_image_transform(
            config.dataset, transform, is_source=source is not None, recipes=recipes
        )
        device = as_device(config.device)
        collate_fn, batched = config.collation
        stacks = batched and collate_fn in STACKS_IMAGES
        if source is not None and source.has_spatial_targets:
            check_targets(config, source, transform, recipes)
        given = config.batch_transform
        decodes_elsewhere = config.remote is not None and config.remote.decode_on == "workers"
        finishes_images = (
            device is not None
            and source is not None
            and stacks
            and recipes is not None
            and not decodes_elsewhere
        )
        if config.scaled_decoding:
            check_scaled_decoding(config, source, recipes, by_gpu=finishes_images)
        plan = cls(
            config=config,
            order=order,
            memory=SamplerSnapshot(config.own_sampler) if has_sampler else None,
            source=source,
            transform=transform,
            device=device,
            finishes_images=finishes_images,
            decoder=None,
            batch_transform=None if given is None else BatchTransform(given),
            lanes=lanes,
            calls=calls,
        )
        if config.num_replicas not in (None, "auto"):
            _ = plan.division if lanes is None else plan.lane_division
        return replace(plan, decoder=plan.new_decoder())

    @cached_property
    def recipes(self) -> Compose | None:
        """The transform of a source's images, if it consists only of recipes."""
        recipes = recipes_of(self.transform)
        if recipes is None or self.source is None:
            return recipes
        return recipes.following(self.source.num_recipes_before)

    @cached_property
    def is_read(self) -> bool:
        """Whether the dataset is map-style or iterable, as torch defines them."""
        return self.lanes is None and self.calls is None

    @cached_property
    def is_iterable(self) -> bool:
        return isinstance(self.config.dataset, IterableDataset) and self.is_read

    @cached_property
    def has_worker_states(self) -> bool:
        """Whether a worker's batches depend on its earlier batches."""
        return self.is_read and isinstance(self.config.dataset, (IterableDataset, Stateful))

    @cached_property
    def has_last_step(self) -> bool:
        """Whether the user's code may run on a batch in the user's thread."""
        return self.batch_transform is not None or self.config.pin_memory

    @property
    def num_positions(self) -> int | None:
        """Number of samples in an epoch of the loader's own order, if it ends."""
        return None if self.order is None or self.is_endless else self.order.num_positions

    @property
    def is_endless(self) -> bool:
        """Whether only the dataset's function decides where an epoch ends."""
        return self.calls is not None and self.calls.length is None

    @property
    def division(self) -> Division | None:
        """Division of an epoch into steps and ranks, if the loader has its own order.

        Raises:
            ValueError: there are several ranks, and the length of the epoch is not known.
        """
        if self.order is None:
            return None
        config = self.config
        num_replicas, rank = ranks_of(config)
        if num_replicas > 1 and self.is_endless:
            raise ValueError(
                f"{num_replicas} ranks need to know where an epoch ends, so that all end "
                "at the same step. Remedy: CallableSource(..., length=)"
            )
        return Division(
            batch_size=config.batch_size or 1,
            drop_last=config.drop_last,
            rank=rank,
            num_replicas=num_replicas,
        )

    @property
    def lane_division(self) -> LaneDivision:
        """The part of a sharded dataset that this rank reads.

        Raises:
            ValueError: the lanes cannot be divided among that many ranks.
        """
        config = self.config
        num_replicas, rank = ranks_of(config)
        if self.lanes is not None:
            self.lanes.check_ranks(num_replicas)
        return LaneDivision(
            batch_size=config.batch_size or 1,
            drop_last=config.drop_last,
            rank=rank,
            num_replicas=num_replicas,
        )

    @property
    def sampler_use(self) -> SamplerUse | None:
        """Settings for iterating a user's sampler; None without one."""
        if self.memory is None:
            return None
        config = self.config
        num_replicas, rank = key_ranks(config.own_sampler)
        return SamplerUse(
            sampler=config.own_sampler,
            yields_batches=config.yields_batches,
            batch_size=config.samples_a_batch or 1,
            drop_last=config.drops_last,
            memory=self.memory,
            rank=rank,
            num_replicas=num_replicas,
        )

    @property
    def rank(self) -> int:
        if self.lanes is not None:
            return self.lane_division.rank
        division = self.division
        if division is not None:
            return division.rank
        return key_ranks(self.config.dataset if self.is_iterable else self.config.own_sampler)[1]

    def num_steps(self, seed: SettledSeed, passes: Passes) -> int | None:
        """Return the number of batches in a whole epoch, or None if it is not known.

        If epochs differ in length, it is the present epoch's. For lanes, whose lengths depend on
        the seed, an undecided seed is settled.
        """
        if self.lanes is not None:
            return self.lanes.num_steps(seed.value, passes.address().epoch, self.lane_division)
        division, num_positions = self.division, self.num_positions
        if division is None or num_positions is None:
            return None
        return division.num_steps(num_positions)

    @property
    def global_batch_size(self) -> int | None:
        """Number of samples in one step of all ranks; None if it is not known."""
        if self.lanes is not None:
            lanes = self.lane_division
            return lanes.batch_size * lanes.num_replicas
        division = self.division
        return self.config.samples_a_batch if division is None else division.global_batch_size

    @property
    def length(self) -> int | None:
        """Number of samples in a map-style dataset, or in an epoch of the loader's own order."""
        if self.order is not None or not is_map(self.config.dataset):
            return self.num_positions
        try:
            return len(self.config.dataset)
        except (TypeError, NotImplementedError):
            return None  # read only at the indices of the user's sampler

    def decoder_like(self, saved: str) -> AnyDecoder:
        """Return the decoder to resume with: for ``"auto"`` the saved family, if available."""
        if self.decoder is None or saved == self.decoder.family:
            return self.decoder
        return self.new_decoder(prefer=saved)

    def new_decoder(self, prefer: str | None = None) -> AnyDecoder:
        """Return a new decoder of the source's images; None without a source.

        Args:
            prefer: family that ``decoder="auto"`` takes if it is available.
        """
        name, share = self.config.decoder, self.config.cpu_share
        if self.config.scaled_decoding:
            return ScaledDecoder(make_decoder(name, prefer))
        if self.finishes_images and self.device is not None:
            decoder = make_batch_decoder(name, self.device, prefer)
            return SharedOut(decoder, share) if share else decoder
        if share:
            raise ValueError(
                f"cpu_share={share} is a share of the images that a GPU would decode, and no GPU "
                "decodes here: device is None, the dataset is not a source of images, transform "
                "is a callable, there is a collate_fn, or batch_size=None. Remedy: change that, "
                "or leave cpu_share at 0"
            )
        return None if self.source is None else make_decoder(name, prefer)

    def is_over(self, place: Address) -> bool:
        """Whether an epoch of the loader's own order has no samples left.

        A pass with states of the user's objects carries them over, and is never skipped.
        """
        division = self.division
        if self.order is None or division is None or place.user is not None:
            return False
        n = self.order.of_epoch(0, place.epoch).n  # any seed, on which the length does not depend
        return not division.num_steps(n - place.position)

    def schedule(
        self,
        place: Address,
        *,
        resumed: bool,
        seed: int,
        has_new_workers: bool,
        promised_length: Callable[[], int | None],
    ) -> Schedule:
        """Return the schedule of a pass, which yields its requests.

        Args:
            place: position where the pass begins.
            resumed: whether the user's objects must be put to that position.
            has_new_workers: whether the workers have not yet run a pass.
            promised_length: returns the result of ``len()`` for an iterable dataset, if it was
                called.
        """
        config, division = self.config, self.division
        interval = config.snapshot_every_n_steps or 0
        keeps_workers = config.persistent_workers or config.num_workers == 0
        loads = resumed or (has_new_workers and config.num_workers > 0)
        feed: Feed
        if self.lanes is not None:
            lane_division = self.lane_division
            return LaneSchedule(
                place,
                plan=self.lanes,
                division=lane_division,
                seed=seed,
                num_workers=config.num_workers,
                num_steps=self.lanes.num_steps(seed, place.epoch, lane_division),
            )
        use = self.sampler_use
        if self.order is not None and division is not None:
            follow_pass(config.sampler, seed=seed, epoch=place.epoch, division=division)
            indices = _indices(self.order, place, seed)
            feed_from = partial(PositionFeed, seed=seed, indices=indices, division=division)
            delivers_in_order = config.keeps_order or config.num_workers == 0
            if delivers_in_order and not (self.has_worker_states or place.user or place.ahead):
                return OrderSchedule(place, feed_from)
            feed = feed_from(place)
        elif use is not None:
            feed = SamplerFeed(use, place, seed=seed, resumed=resumed)
        else:
            num_replicas, rank = key_ranks(config.dataset)
            return WorkerSchedule(
                place,
                loads=loads,
                seed=seed,
                num_workers=config.num_workers,
                rank=rank,
                num_replicas=num_replicas,
                interval=interval,
                in_order=config.in_order,
                keeps_workers=keeps_workers,
                length=promised_length,
            )
        return MapSchedule(
            place,
            loads=loads,
            feed=feed,
            seed=seed,
            num_workers=config.num_workers,
            in_order=config.keeps_order,
            interval=interval,
            worker_states=self.has_worker_states,
            keeps_workers=keeps_workers,
        )


class Chain:
    def __init__(self, transforms: list[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, sample: Any) -> Any:
        for step in self.transforms:
            sample = step(sample)
        return sample


def as_transform(transform: Any) -> Any:
    """Normalise a transform to None, a Compose of recipes, or one callable.

    Raises:
        TypeError: a part of it is not callable.
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
    """Return the recipes if the transform consists only of recipes, otherwise None."""
    if transform is None:
        return Compose([])
    return transform if isinstance(transform, Compose) else None


def _indices(order: PositionOrder, place: Address, seed: int) -> EpochOrder:
    permutation = None if place.user is None else place.user.permutation
    if permutation is not None:
        return Listed(shuffled_indices(generator_from_text(permutation), order.num_positions))
    return order.of_epoch(seed, place.epoch)
