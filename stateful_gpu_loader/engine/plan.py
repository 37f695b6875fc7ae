"""The pieces of a pass, put together from a loader's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch

from stateful_gpu_loader.datasets import as_source
from stateful_gpu_loader.datasets.callable import CallableSource
from stateful_gpu_loader.datasets.lanes import LaneDivision, LanePlan
from stateful_gpu_loader.datasets.sharded import EncodedShards, ShardedDataset
from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.decoders import (
    BatchDecoder,
    Decoder,
    make_batch_decoder,
    make_decoder,
)
from stateful_gpu_loader.decoders.cpu_share import SharedOut
from stateful_gpu_loader.engine.arguments import (
    as_device,
    check_image_transform,
    check_targets_move,
)
from stateful_gpu_loader.engine.attributes import (
    batching_of,
    called,
    collation_of,
    key_ranks,
    own_sampler_of,
    sampler_use,
    workers_of,
)
from stateful_gpu_loader.engine.batch_transform import BatchTransform
from stateful_gpu_loader.engine.choice import Work, as_transform, recipes_of
from stateful_gpu_loader.engine.fingerprint import Identity, identity_of
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.makers.collate import STACKS_IMAGES
from stateful_gpu_loader.engine.makers.handed import HandedImages
from stateful_gpu_loader.engine.sampler_link import division_of, follow_pass
from stateful_gpu_loader.engine.schedules.lane_schedule import LaneStream
from stateful_gpu_loader.engine.schedules.map_schedule import Feed, MapStream
from stateful_gpu_loader.engine.schedules.positions import Division, Requests
from stateful_gpu_loader.engine.schedules.sampler_feed import SamplerFeed
from stateful_gpu_loader.engine.schedules.sampler_snapshot import SamplerMemory
from stateful_gpu_loader.engine.schedules.schedule import Stream
from stateful_gpu_loader.engine.schedules.worker_schedule import TurnStream
from stateful_gpu_loader.engine.world import size_and_rank
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
from stateful_gpu_loader.state.epoch_progress import Address, Pass, Passes
from stateful_gpu_loader.state.schema import Stateful
from stateful_gpu_loader.state.torchdata import shuffled_indices

AnyDecoder: TypeAlias = Decoder | BatchDecoder | None
"""One by one in the workers, in batches on the device, or none."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a loader's arguments amount to; the loader itself is looked at when it is needed."""

    order: PositionOrder | None
    """The loader's own; None where a user's sampler or an iterable dataset decides."""
    memory: SamplerMemory | None
    """Of a user's sampler."""
    source: Source | None
    """The dataset, or what stands for it, if it holds encoded images."""
    transform: Any
    """As :func:`~stateful_gpu_loader.engine.choice.as_transform` gives it."""
    device: torch.device | None
    """Where batches are delivered; None is the CPU."""
    finishes_images: bool
    """Whether the device decodes and augments, and not only receives what the workers made."""
    batch_transform: BatchTransform | None
    lanes: LanePlan | None
    """How the dataset is read, if it is sharded."""
    calls: CallableSource | None
    """The dataset, if a function makes its samples."""

    @classmethod
    def of(cls, loader: Any, *, has_batch_sampler: bool) -> Parts:
        """Of a loader whose public attributes are set.

        Args:
            has_batch_sampler: whether the user gave one.
        """
        lanes = None
        if isinstance(loader.dataset, ShardedDataset):
            lanes = LanePlan(loader.dataset, shuffle=bool(loader.shuffle))
            if isinstance(loader.num_replicas, int):
                lanes.check_ranks(loader.num_replicas)
        is_mapped = is_map(loader.dataset)
        order = order_of(loader.sampler) if is_mapped and not has_batch_sampler else None
        calls = called(loader)
        if calls is not None:
            order = CallOrder(calls.length)
        has_sampler = is_mapped and order is None
        source, transform = as_source(loader.dataset), as_transform(loader.transform)
        has_images = calls is not None and calls.image is not None
        if has_images or isinstance(loader.dataset, EncodedShards):
            source = HandedImages()
        check_image_transform(
            loader.dataset,
            transform,
            is_source=source is not None,
            recipes=recipes_of(transform),
        )
        device = as_device(loader.device)
        collate_fn, batched = collation_of(loader)
        stacks = batched and collate_fn in STACKS_IMAGES
        recipes_only = recipes_of(transform) is not None
        if source is not None and source.has_spatial_targets:
            check_targets_move(loader.dataset, transform, recipes_of(transform))
        given = loader.batch_transform
        parts = cls(
            order=order,
            memory=SamplerMemory(own_sampler_of(loader)[0]) if has_sampler else None,
            source=source,
            transform=transform,
            device=device,
            finishes_images=device is not None and source is not None and stacks and recipes_only,
            batch_transform=None if given is None else BatchTransform(given),
            lanes=lanes,
            calls=calls,
        )
        if isinstance(loader.num_replicas, int):
            parts.division(loader)
        return parts

    @property
    def num_positions(self) -> int | None:
        """Samples of an epoch, where the loader has the order and that has an end."""
        return None if self.order is None or self.is_endless else self.order.num_positions

    @property
    def is_endless(self) -> bool:
        """Whether a function tells where an epoch ends, and nothing else."""
        return self.calls is not None and self.calls.length is None

    def division(self, loader: Any) -> Division | None:
        """How an epoch is divided, where the loader has the order.

        Raises:
            ValueError: several ranks would not know where the epoch ends.
        """
        if self.order is None:
            return None
        division = division_of(
            loader.sampler,
            batch_size=loader.batch_size,
            drop_last=loader.drop_last,
            num_replicas=loader.num_replicas,
            rank=loader.rank,
        )
        if division.num_replicas > 1 and self.is_endless:
            raise ValueError(
                f"{division.num_replicas} ranks need to know where an epoch ends, so that all end "
                "at the same step. Remedy: CallableSource(..., length=)"
            )
        return division

    def lane_division(self, loader: Any) -> LaneDivision:
        """What this rank serves of a sharded dataset.

        Raises:
            ValueError: the lanes cannot be shared by so many ranks.
        """
        given = loader.num_replicas
        ranks = (1, 0) if given is None else (given, loader.rank)
        num_replicas, rank = size_and_rank() if given == "auto" else ranks
        if self.lanes is not None:
            self.lanes.check_ranks(num_replicas)
        return LaneDivision(
            batch_size=loader.batch_size or 1,
            drop_last=loader.drop_last,
            rank=rank,
            num_replicas=num_replicas,
        )

    def num_steps(self, loader: Any, seed: SettledSeed, passes: Passes) -> int | None:
        """Batches of a whole epoch, where that is known: of the present one, if epochs differ."""
        if self.lanes is not None:
            epoch = passes.address().epoch
            return self.lanes.num_steps(seed.value, epoch, self.lane_division(loader))
        division, num_positions = self.division(loader), self.num_positions
        if division is None or num_positions is None:
            return None
        return division.num_steps(num_positions)

    def global_batch_size(self, loader: Any) -> int | None:
        """Samples of all ranks in one step; None where nobody knows."""
        if self.lanes is not None:
            lanes = self.lane_division(loader)
            return lanes.batch_size * lanes.num_replicas
        division = self.division(loader)
        if division is not None:
            return division.global_batch_size
        size: int | None = batching_of(loader).batch_size
        return size

    def make_decoder(self, loader: Any, prefer: str | None = None) -> AnyDecoder:
        """The decoder of the loader's images; None where it has none.

        Args:
            prefer: a family that ``decoder="auto"`` takes where it is available.
        """
        share = loader.cpu_share
        if self.source is not None and self.device is not None and self.finishes_images:
            decoder = make_batch_decoder(loader.decoder, self.device, prefer)
            return SharedOut(decoder, share) if share else decoder
        if share:
            raise ValueError(
                f"cpu_share={share} is of the images that a GPU would decode, and here none does: "
                "device is None, or the dataset is no source of images, or transform is a "
                "callable, or there is a collate_fn, or batch_size=None. Remedy: change that, or "
                "leave cpu_share at 0"
            )
        return None if self.source is None else make_decoder(loader.decoder, prefer)

    def decoder_for(self, loader: Any, saved: str, *, present: AnyDecoder) -> AnyDecoder:
        """``decoder="auto"`` takes the family that the state was saved with, where it can."""
        if present is None or saved == present.family:
            return present
        return self.make_decoder(loader, prefer=saved)

    def length(self, loader: Any) -> int | None:
        """Samples of a map-style dataset, or of an epoch of the loader's own order."""
        if self.order is not None or not is_map(loader.dataset):
            return self.num_positions
        try:
            return len(loader.dataset)
        except (TypeError, NotImplementedError):
            return None  # read by the indices of the user's sampler alone

    def identity(self, loader: Any, decoder: AnyDecoder) -> Identity:
        """What must not change between saving and loading."""
        return identity_of(
            dataset=self._known_dataset(loader),
            order=self.lanes or self.order,
            sampler=None if self.memory is None else own_sampler_of(loader)[0],
            length=self.length(loader),
            drop_last=batching_of(loader).drop_last,
            batched=collation_of(loader)[1],
            transform=self.transform,
            batch_transform=self.batch_transform,
            collate_fn=loader.collate_fn,
            on_bad_sample=loader.on_bad_sample,
            decoder=decoder,
            on_device=self.finishes_images,
        )

    def _known_dataset(self, loader: Any) -> Any:
        """What the dataset is known by: as a source, unless images are only handed to one."""
        is_handed = self.lanes is not None or self.calls is not None
        return loader.dataset if is_handed or self.source is None else self.source

    def work(self, loader: Any, decoder: AnyDecoder, known_bad: Mapping[int, str]) -> Work:
        """What the loader's workers do."""
        collate_fn, batched = collation_of(loader)
        return Work(
            dataset=loader.dataset,
            transform=self.transform,
            collate_fn=collate_fn,
            batch_size=loader.batch_size,
            batched=batched,
            drop_last=loader.drop_last,
            source=self.source,
            decoder=None if self.finishes_images else cast("Decoder | None", decoder),
            batch_decoder=cast("BatchDecoder", decoder) if self.finishes_images else None,
            bad_samples=BadSamplePolicy(
                mode=loader.on_bad_sample,
                order=None if self.calls is not None else self.order,
                known=known_bad,
                reads_again=isinstance(loader.dataset, Stateful),
            ),
            lanes=self.lanes,
            calls=self.calls,
        )

    def begin(self, loader: Any, passes: Passes) -> Pass:
        """The next pass of the loader."""
        division, order = self.division(loader), self.order
        if division is None or order is None:
            return passes.begin()
        orders, divided = order, division

        def is_over(place: Address) -> bool:
            # With states of the user's the empty rest is gone through, to carry them over.
            n = orders.of_epoch(0, place.epoch).n  # which no seed changes
            return place.user is None and not divided.num_steps(n - place.position)

        skips = loader.on_epoch_boundary == "next_epoch"
        return passes.begin(is_over=is_over, skips_empty_rest=skips)

    def stream(
        self, loader: Any, current: Pass, *, seed: int, work: Work, has_new_workers: bool
    ) -> Stream:
        """The requests of a pass.

        Args:
            current: the pass.
            seed: of the loader.
            work: what its workers do.
            has_new_workers: whether none of them has served a pass before.
        """
        division, place = self.division(loader), current.start
        interval = loader.snapshot_every_n_steps or 0
        keeps_workers = loader.persistent_workers or loader.num_workers == 0
        loads = current.resumed or (has_new_workers and loader.num_workers > 0)
        feed: Feed
        if self.lanes is not None:
            lane_division = self.lane_division(loader)
            return LaneStream(
                place,
                plan=self.lanes,
                division=lane_division,
                seed=seed,
                num_workers=loader.num_workers,
                num_steps=self.lanes.num_steps(seed, place.epoch, lane_division),
            )
        if self.order is not None and division is not None:
            follow_pass(loader.sampler, seed=seed, epoch=place.epoch, division=division)
            indices = _indices(self.order, place, seed)
            feed = Requests(place, seed=seed, indices=indices, division=division)
        elif self.memory is not None:
            use = sampler_use(loader, self.memory)
            feed = SamplerFeed(use, place, seed=seed, resumed=current.resumed)
        else:
            num_replicas, rank = key_ranks(loader.dataset)
            return TurnStream(
                place,
                loads=loads,
                seed=seed,
                num_workers=loader.num_workers,
                rank=rank,
                num_replicas=num_replicas,
                interval=interval,
                in_order=loader.in_order,
                keeps_workers=keeps_workers,
                length=lambda: loader._IterableDataset_len_called,
            )
        return MapStream(
            place,
            loads=loads,
            feed=feed,
            seed=seed,
            num_workers=loader.num_workers,
            in_order=workers_of(loader).in_order,
            interval=interval,
            worker_states=work.has_worker_states,
            keeps_workers=keeps_workers,
        )


def _indices(order: PositionOrder, place: Address, seed: int) -> EpochOrder:
    permutation = None if place.user is None else place.user.permutation
    if permutation is not None:
        return Listed(shuffled_indices(generator_from_text(permutation), order.num_positions))
    return order.of_epoch(seed, place.epoch)
