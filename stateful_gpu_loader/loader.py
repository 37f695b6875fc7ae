"""StatefulGPULoader: arguments, wiring, ``state_dict`` and ``load_state_dict``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, TypeVar

import torch
from torch.utils.data import Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

from stateful_gpu_loader.arguments import (
    check_accept,
    check_arguments,
    check_inherited,
    check_own_sampler,
    check_shuffle,
)
from stateful_gpu_loader.decoders import Decoder, make_decoder
from stateful_gpu_loader.engine.choice import (
    Work,
    Workers,
    as_transform,
    check_worker_type,
    make_pipeline,
)
from stateful_gpu_loader.engine.pipeline import Pipeline
from stateful_gpu_loader.engine.pipelines.processes import pin
from stateful_gpu_loader.engine.run import Begun, Run
from stateful_gpu_loader.engine.streams.positions import Division, Requests
from stateful_gpu_loader.identity import (
    check_fits,
    check_has_user_state,
    fingerprint_of,
    report_batch_size,
    report_changes,
)
from stateful_gpu_loader.passes import Address, Passes
from stateful_gpu_loader.sampler_link import (
    OWN_SAMPLERS,
    division_of,
    follow_pass,
    seed_of,
    take_requested_epoch,
)
from stateful_gpu_loader.samplers import default_sampler, is_plain_map, order_of
from stateful_gpu_loader.settled_seed import SettledSeed
from stateful_gpu_loader.sources import as_source
from stateful_gpu_loader.state import Fingerprint, LoaderState, as_epoch, as_int

_T_co = TypeVar("_T_co", covariant=True)


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
        check_arguments(
            seed=seed,
            rank=rank,
            num_replicas=num_replicas,
            prefetch_factor=prefetch_factor,
            worker_type=worker_type,
            on_epoch_boundary=on_epoch_boundary,
            decoder=decoder,
        )
        inherited_shuffle = shuffle
        if sampler is None and batch_sampler is None and is_plain_map(dataset):
            check_shuffle(shuffle)
            sampler = default_sampler(
                dataset,
                shuffle=bool(shuffle),
                drop_last=drop_last,
                seed=seed,
                num_replicas=num_replicas,
                rank=rank,
            )
            inherited_shuffle = None
        elif isinstance(sampler, OWN_SAMPLERS):
            check_own_sampler(
                sampler, seed=seed, num_replicas=num_replicas, rank=rank, drop_last=drop_last
            )
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

        has_order = batch_sampler is None and is_plain_map(dataset)
        self._order = order_of(self.sampler) if has_order else None
        self._transform = as_transform(transform)
        self._source = as_source(dataset)
        check_inherited(
            order=self._order,
            source=self._source,
            transform=transform,
            num_replicas=num_replicas,
        )
        self._image_decoder = None if self._source is None else make_decoder(decoder)
        self._seed = SettledSeed(
            seed_of(self.sampler) if seed is None else seed,
            generator,
            sharded=num_replicas is not None,
        )
        self._passes = Passes()
        self._fingerprint: tuple[int | None, str] | None = None
        self._idle_pipeline: Pipeline | None = None
        if self._order is not None and num_workers > 0:
            check_worker_type(self._work(), self._workers())

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
        return Run(self._passes, self._begin_pass, self._finish, self.__len__)

    def __len__(self) -> int:
        """Batches of a whole epoch, under the present batch size and number of ranks."""
        if self._order is None:
            return int(super().__len__())
        return self._division().num_steps(self._order.num_positions)

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass one of this epoch; a resumed pass keeps its own, with a warning.

        Raises:
            ValueError: the epoch is no int from 0 to 2**32 - 2.
        """
        epoch = as_epoch(epoch)
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
        batches_ago = as_int("batches_ago", batches_ago)
        if self._order is None:
            return self._inherited_state(batches_ago)
        self._take_requested_epoch()
        address = self._passes.address(batches_ago)
        return LoaderState(
            seed=self._seed.value,
            epoch=address.epoch,
            position=address.position,
            fingerprint=self._fingerprint_text(),
            global_batch_size=self._division().global_batch_size,
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
            check_has_user_state(state)
            super().load_state_dict(state.user)
            return
        num_positions = self._order.num_positions
        check_fits(state, seed=self.seed, num_positions=num_positions, accept=accept)

        report_changes(saved, present)
        report_batch_size(state, self._division().global_batch_size)
        if decoder is not self._image_decoder:
            self._image_decoder = decoder
            self._fingerprint = None
            self._keep_idle(None)
        if "seed" not in accept or self.seed is None:
            self._seed.load(state.seed)
        self._take_requested_epoch()
        self._passes.load(Address(state.epoch, state.position))

    def _begin_pass(self) -> Begun:
        if self._order is None:
            raise TypeError("this loader iterates as torchdata does")
        division, n = self._division(), self._order.num_positions
        self._take_requested_epoch()
        seed = self._seed.draw()
        current = self._passes.begin(
            is_over=(lambda position: not division.num_steps(n - position))
            if self.on_epoch_boundary == "next_epoch"
            else None
        )
        epoch = current.start.epoch
        follow_pass(self.sampler, seed=seed, epoch=epoch, division=division)
        pipeline, self._idle_pipeline = self._idle_pipeline, None
        if pipeline is None:
            pipeline = make_pipeline(self._work(), self._workers(), seed, current.start)
        indices = self._order.of_epoch(seed, epoch)
        pipeline.start(Requests(current.start, seed=seed, indices=indices, division=division))
        release = partial(self._release_pipeline, pipeline, self._image_decoder)
        return Begun(current, pipeline, release)

    def _release_pipeline(self, pipeline: Pipeline, decoder: Decoder | None) -> None:
        """Keep persistent workers for the next pass, unless a load has changed their decoder."""
        if self.persistent_workers and decoder is self._image_decoder:
            self._keep_idle(pipeline)
        else:
            pipeline.close()

    def _keep_idle(self, pipeline: Pipeline | None) -> None:
        before, self._idle_pipeline = self._idle_pipeline, pipeline
        if before is not None:
            before.close()

    def _finish(self, batch: Any) -> Any:
        if self.pin_memory and torch.accelerator.is_available():
            return pin(batch)
        return batch

    def _work(self) -> Work:
        return Work(
            dataset=self.dataset,
            transform=self._transform,
            collate_fn=self.collate_fn,
            batched=self.batch_sampler is not None,
            source=self._source,
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

    def _division(self) -> Division:
        return division_of(
            self.sampler,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            num_replicas=self.num_replicas,
        )

    def _take_requested_epoch(self) -> None:
        requested = take_requested_epoch(self.sampler)
        if requested is not None:
            self._passes.request_epoch(requested)

    def _fingerprint_text(self) -> str:
        length = None if self._order is None else self._order.num_positions
        if self._fingerprint is None or self._fingerprint[0] != length:
            text = self._make_fingerprint(self._image_decoder).to_text()
            self._fingerprint = length, text
        return self._fingerprint[1]

    def _make_fingerprint(self, decoder: Decoder | None) -> Fingerprint:
        return fingerprint_of(
            dataset=self.dataset if self._source is None else self._source,
            order=self._order,
            drop_last=self.drop_last,
            transform=self._transform,
            decoder=decoder,
        )

    def _decoder_for(self, saved: Fingerprint) -> Decoder | None:
        """``decoder="auto"`` takes the family that the state was saved with, where it can."""
        present = self._image_decoder
        if present is None or saved.decoder == present.family:
            return present
        return make_decoder(self.decoder, prefer=saved.decoder)

    def _inherited_state(self, batches_ago: int) -> dict[str, Any]:
        if batches_ago:
            raise ValueError(f"{batches_ago = } needs a sampler of this package")
        return LoaderState(
            seed=self.seed or 0,
            epoch=0,
            position=0,
            fingerprint=self._fingerprint_text(),
            global_batch_size=None,
            user=super().state_dict(),
        ).to_dict()
