"""StatefulGPULoader: arguments, wiring, ``state_dict`` and ``load_state_dict``."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

import torch
import torch.distributed
from torch.utils.data import Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

from stateful_gpu_loader.arguments import (
    check_accept,
    check_choice,
    check_epoch,
    check_inherited,
    check_ranks,
    check_seed,
    check_shuffle,
    default_sampler,
    is_plain_map,
    order_of,
)
from stateful_gpu_loader.decoders import Decoder, available, make_decoder
from stateful_gpu_loader.engine.choice import (
    WORKER_TYPES,
    Work,
    Workers,
    as_transform,
    make_pipeline,
    runs_in_threads,
)
from stateful_gpu_loader.engine.pipeline import Pipeline
from stateful_gpu_loader.engine.processes import pin
from stateful_gpu_loader.engine.requests import Division, requests_from
from stateful_gpu_loader.engine.run import Run
from stateful_gpu_loader.identity import check_fits, fingerprint_of, report_changes
from stateful_gpu_loader.passes import Address, Pass, Passes
from stateful_gpu_loader.samplers import (
    DistributedShuffledSampler,
    PositionOrder,
    ShuffledSampler,
)
from stateful_gpu_loader.settled_seed import SettledSeed
from stateful_gpu_loader.sources.source import Source
from stateful_gpu_loader.state import Fingerprint, LoaderState

logger = logging.getLogger(__name__)

_T_co = TypeVar("_T_co", covariant=True)

_BOUNDARIES = ("empty", "next_epoch")


class StatefulGPULoader(StatefulDataLoader[_T_co]):
    """A DataLoader whose state brings back exactly the stream that was interrupted.

    A drop-in for ``torch.utils.data.DataLoader`` and torchdata's ``StatefulDataLoader``, whose
    arguments it takes with their meaning. Given a :class:`Source`, it decodes and augments
    images itself and yields ``[images, targets]``.

    Args:
        dataset: any dataset; a Source of encoded images makes use of the image stage.
        batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory,
            drop_last, timeout, worker_init_fn, multiprocessing_context, generator,
            prefetch_factor, persistent_workers, pin_memory_device, in_order,
            snapshot_every_n_steps: as in StatefulDataLoader.
        seed: keys order and augmentations; None is settled once, from ``generator`` or torch's
            default one (0 with several ranks), and kept in the state.
        rank, num_replicas: as in DistributedSampler; None leaves the dataset unsharded, and
            ``num_replicas="auto"`` reads torch.distributed at the first ``next()``.
        decoder: of a Source's images: ``"auto"``, ``"torchcodec"`` or ``"torchvision"``.
        transform: a list of recipes of :mod:`stateful_gpu_loader.transforms`, or any callable:
            on the image of a Source, on the whole sample of another dataset.
        worker_type: ``"thread"``, ``"process"``, or ``"auto"``: threads where all work is done
            by recipes on a Source, processes elsewhere.
        on_epoch_boundary: what a state taken between an epoch's last batch and its end resumes
            to: ``"empty"``, an empty rest of that epoch, or ``"next_epoch"``, the next one.

    Raises:
        ValueError, TypeError: an argument is out of range, or two exclude each other.

    >>> loader = StatefulGPULoader(range(10), batch_size=4, shuffle=True, seed=42)
    >>> batches = iter(loader)
    >>> first = next(batches)
    >>> state = loader.state_dict()
    >>> resumed = StatefulGPULoader(range(10), batch_size=4, shuffle=True, seed=42)
    >>> resumed.load_state_dict(state)
    >>> [batch.tolist() for batch in resumed] == [batch.tolist() for batch in batches]
    True
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        snapshot_every_n_steps: int | None = 1,
        seed: int | None = None,
        rank: int | None = None,
        num_replicas: int | str | None = None,
        decoder: str = "auto",
        transform: Any = None,
        worker_type: str = "auto",
        on_epoch_boundary: str = "empty",
    ) -> None:
        check_seed(seed)
        check_ranks(rank, num_replicas)
        check_choice("worker_type", worker_type, WORKER_TYPES)
        check_choice("on_epoch_boundary", on_epoch_boundary, _BOUNDARIES)
        if sampler is None and batch_sampler is None and is_plain_map(dataset):
            check_shuffle(shuffle)
            sampler = default_sampler(dataset, bool(shuffle), drop_last, seed, num_replicas, rank)
            inherited_shuffle = None
        else:
            inherited_shuffle = shuffle
        with warnings.catch_warnings():
            # torchdata calls what torch >= 2.15 deprecates; users can do nothing about it.
            warnings.filterwarnings("ignore", message=".*set_vital.*")
            super().__init__(
                dataset,
                batch_size=batch_size,
                shuffle=inherited_shuffle,
                sampler=sampler,
                batch_sampler=batch_sampler,
                num_workers=num_workers,
                collate_fn=collate_fn,
                pin_memory=pin_memory,
                drop_last=drop_last,
                timeout=timeout,
                worker_init_fn=worker_init_fn,
                multiprocessing_context=multiprocessing_context,
                generator=generator,
                prefetch_factor=prefetch_factor,
                persistent_workers=persistent_workers,
                pin_memory_device=pin_memory_device,
                in_order=in_order,
                snapshot_every_n_steps=snapshot_every_n_steps,
            )
        self.shuffle = shuffle
        self.seed = seed
        self.rank = rank
        self.num_replicas = num_replicas
        self.decoder = decoder
        self.transform = transform
        self.worker_type = worker_type
        self.on_epoch_boundary = on_epoch_boundary

        self._order = (
            order_of(self.sampler) if is_plain_map(dataset) and not batch_sampler else None
        )
        self._transform = as_transform(transform)
        self._passes = Passes()
        self._seed = SettledSeed(seed, generator)
        self._fingerprint_text: str | None = None
        self._idle_pipeline: Pipeline | None = None
        self._image_decoder: Decoder | None = None
        if isinstance(dataset, Source):
            self._image_decoder = make_decoder(decoder)
        if self._order is None:
            check_inherited(transform, num_replicas)
        elif num_workers > 0:
            runs_in_threads(self._work(), self._workers())

    def __iter__(self) -> Any:
        """A new pass; it begins at its first ``next()``."""
        if self._order is None:
            return super().__iter__()
        if self.pin_memory and not torch.accelerator.is_available():
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, "
                "then device pinned memory won't be used.",
                stacklevel=2,
            )
        return Run(
            self._passes,
            begin=self._begin_pass,
            release=self._release_pipeline,
            finish=self._finish,
            length=self.__len__,
        )

    def __len__(self) -> int:
        """Batches of a whole epoch, under the present batch size and number of ranks."""
        if self._order is None:
            return int(super().__len__())
        return self._division().num_steps(self._order.num_positions)

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass one of this epoch; a resumed pass keeps its own, with a warning.

        Raises:
            ValueError: the epoch is no int from 0 to 2**32 - 1.
        """
        check_epoch(epoch)
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        self._passes.request_epoch(epoch)

    def state_dict(self, batches_ago: int = 0) -> dict[str, Any]:
        """The state after the last delivered batch, or after one of the 16 before it.

        Starts nothing and changes nothing; a fresh dictionary of a few hundred bytes, the same
        on every rank.

        Args:
            batches_ago: for trainers that fetch ahead of the step they are in.

        Raises:
            ValueError: ``batches_ago`` reaches further back than the loader remembers.
        """
        if self._order is None:
            return self._inherited_state(batches_ago)
        self._heed_sampler()
        address, division = self._passes.address(batches_ago), self._division()
        return LoaderState(
            seed=self._seed.value(num_replicas=division.num_replicas),
            epoch=address.epoch,
            position=address.position,
            fingerprint=self._fingerprint(),
            global_batch_size=division.global_batch_size,
        ).to_dict()

    def load_state_dict(self, state_dict: dict[str, Any], accept: Collection[str] = ()) -> None:
        """Go on from a state, on any number of workers and ranks, with any batch size.

        It acts on the next iterator, and on those that have delivered nothing. Everything is
        checked before anything is changed.

        Args:
            state_dict: what ``state_dict()`` returned.
            accept: fields of the fingerprint, or ``"seed"``, that are meant to differ.

        Raises:
            StateMismatch: the state is damaged, or belongs to another loader; it names the
                field, both values and the remedy.
            ValueError: ``accept`` names no such field.
        """
        check_accept(accept)
        state = LoaderState.from_dict(state_dict)
        saved = Fingerprint.from_text(state.fingerprint)
        decoder = self._decoder_for(saved)
        present = self._make_fingerprint(decoder)
        present.check(saved, accept=accept, position=state.position)
        if self._order is None:
            super().load_state_dict(state.user)
            return
        num_positions = self._position_order().num_positions
        check_fits(state, seed=self.seed, num_positions=num_positions, accept=accept)

        report_changes(saved, present)
        size = self._division().global_batch_size
        if state.global_batch_size != size:
            logger.info("global batch size changed from %s to %s", state.global_batch_size, size)
        if decoder is not self._image_decoder:
            self._image_decoder = decoder
            self._fingerprint_text = None
            self._close_idle_pipeline()
        if "seed" not in accept or self.seed is None:
            self._seed.load(state.seed)
        self._forget_requested_epoch()
        self._passes.load(Address(state.epoch, state.position))

    def _begin_pass(self) -> tuple[Pass, Pipeline]:
        order = self._position_order()
        division = self._division()
        if isinstance(self.sampler, DistributedShuffledSampler):
            self.sampler.place(division.num_replicas, division.rank)
        self._heed_sampler()
        seed = self._seed.draw(num_replicas=division.num_replicas)
        at_end = order.num_positions if self.on_epoch_boundary == "next_epoch" else None
        current = self._passes.begin(skip_epoch_finished_at=at_end)
        pipeline, self._idle_pipeline = self._idle_pipeline, None
        if pipeline is None:
            pipeline = make_pipeline(self._work(), self._workers(), base_seed=seed)
        requests = requests_from(current.start, seed=seed, order=order, division=division)
        pipeline.start(requests)
        return current, pipeline

    def _release_pipeline(self, pipeline: Pipeline) -> None:
        if self.persistent_workers and self._idle_pipeline is None:
            self._idle_pipeline = pipeline
        else:
            pipeline.close()

    def _close_idle_pipeline(self) -> None:
        pipeline, self._idle_pipeline = self._idle_pipeline, None
        if pipeline is not None:
            pipeline.close()

    def _finish(self, batch: Any) -> Any:
        if self.pin_memory and torch.accelerator.is_available():
            return pin(batch)
        return batch

    def _work(self) -> Work:
        return Work(
            dataset=self.dataset,
            transform=self._transform,
            collate_fn=self.collate_fn,
            batched=self._auto_collation,
            decoder=self._image_decoder,
        )

    def _workers(self) -> Workers:
        return Workers(
            num_workers=self.num_workers,
            worker_type=self.worker_type,
            prefetch_factor=self.prefetch_factor,
            timeout=self.timeout,
            worker_init_fn=self.worker_init_fn,
            multiprocessing_context=self.multiprocessing_context,
            persistent_workers=self.persistent_workers,
        )

    def _position_order(self) -> PositionOrder:
        if self._order is None:
            raise TypeError("this loader iterates as torchdata does: it has no position order")
        return self._order

    def _division(self) -> Division:
        num_replicas, rank = 1, 0
        if isinstance(self.sampler, DistributedShuffledSampler):
            num_replicas, rank = self.sampler.num_replicas, self.sampler.rank
        if self.num_replicas == "auto" and torch.distributed.is_initialized():
            num_replicas = torch.distributed.get_world_size()
            rank = torch.distributed.get_rank()
        return Division(
            batch_size=self.batch_size or 1,
            drop_last=self.drop_last,
            rank=rank,
            num_replicas=num_replicas,
        )

    def _heed_sampler(self) -> None:
        """``loader.sampler.set_epoch()`` counts as ``loader.set_epoch()``."""
        requested = getattr(self.sampler, "requested_epoch", None)
        if requested is not None:
            self._passes.request_epoch(requested)
            self._forget_requested_epoch()

    def _forget_requested_epoch(self) -> None:
        if isinstance(self.sampler, (ShuffledSampler, DistributedShuffledSampler)):
            self.sampler.requested_epoch = None

    def _fingerprint(self) -> str:
        if self._fingerprint_text is None:
            self._fingerprint_text = self._make_fingerprint(self._image_decoder).to_text()
        return self._fingerprint_text

    def _make_fingerprint(self, decoder: Decoder | None) -> Fingerprint:
        return fingerprint_of(
            dataset=self.dataset,
            order=self._order,
            shuffle=bool(self.shuffle),
            drop_last=self.drop_last,
            transform=self._transform,
            decoder=decoder,
        )

    def _decoder_for(self, saved: Fingerprint) -> Decoder | None:
        """``decoder="auto"`` takes the family that the state was saved with, where it can."""
        decoder = self._image_decoder
        if decoder is None or self.decoder != "auto" or saved.decoder == decoder.family:
            return decoder
        return make_decoder(saved.decoder) if saved.decoder in available() else decoder

    def _inherited_state(self, batches_ago: int) -> dict[str, Any]:
        if batches_ago:
            raise ValueError(
                f"{batches_ago = } needs a map-style dataset with one of this package's samplers"
            )
        return LoaderState(
            seed=self.seed or 0,
            epoch=0,
            position=0,
            fingerprint=self._fingerprint(),
            global_batch_size=None,
            user=super().state_dict(),
        ).to_dict()
