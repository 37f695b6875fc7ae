"""Engine: what makes a loader's batches, and where the loader stands."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from stateful_gpu_loader.engine.config import OF_WORKERS
from stateful_gpu_loader.engine.fingerprint import (
    Identity,
    check_fits,
    check_proven,
    report_batch_size,
    report_changes,
    report_unverified,
    unsaid,
)
from stateful_gpu_loader.engine.makers.choice import drawn_for, policy_of
from stateful_gpu_loader.engine.pipeline import Pipeline
from stateful_gpu_loader.engine.plan import Plan
from stateful_gpu_loader.engine.resume.lanes import lane_place, lane_texts
from stateful_gpu_loader.engine.resume.places import (
    place_of,
    put_sampler,
    states_between_passes,
    with_dataset_state,
)
from stateful_gpu_loader.engine.resume.torchdata import from_torchdata
from stateful_gpu_loader.engine.sampler_link import seed_of, take_requested_epoch
from stateful_gpu_loader.engine.schedules.schedule import Schedule
from stateful_gpu_loader.engine.user_objects import DatasetMemory
from stateful_gpu_loader.engine.workers.torch_workers import pin
from stateful_gpu_loader.engine.workers.worker_pool import WorkerPool
from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.randomness.seed import SettledSeed
from stateful_gpu_loader.state.bad_samples import BadSamples, FoundBad
from stateful_gpu_loader.state.descriptions import own_fingerprint
from stateful_gpu_loader.state.epoch_progress import Address, Pass, Passes
from stateful_gpu_loader.state.schema import Fingerprint, LoaderState
from stateful_gpu_loader.state.torchdata import is_torchdata_state


@dataclass
class Begun:
    """A pass that has begun."""

    current: Pass
    plan: Plan
    """Of the pass: what the loader is told later counts for later ones."""
    schedule: Schedule
    pipeline: Pipeline
    """Started on the requests of the schedule."""
    workers: WorkerPool
    """Whose the pipeline is."""
    seed: int
    """Of the pass."""
    losses: int = 0
    """How often workers were lost since a batch was delivered."""
    is_running: bool = False
    """Whether the pipeline was started."""
    is_alone: bool = False
    """Whether it makes one batch at a time."""
    alone: int = 0
    """Batches that are still to be made so."""
    ended_workers: set[int] = field(default_factory=set)
    """Whose iterators have ended."""
    bad_in_a_row: int = 0
    """Samples that could not be used since a batch was delivered."""
    ended: bool = False
    """Whether all its requests were answered."""
    has_failed: bool = False
    """Whether a batch of it has raised."""

    @property
    def has_answered(self) -> bool:
        """Whether a batch was delivered or has raised: where the pass began is known in full."""
        return self.current.delivered or self.has_failed


class Engine:
    """Begins passes, finishes their batches, and tells and takes a loader's state.

    Args:
        plan: what is done to make a batch.
        seed: that was given to the loader; None leaves it to the sampler or the generator.
        generator: the caller's, for a seed that is settled.
    """

    def __init__(self, plan: Plan, seed: int | None, generator: torch.Generator | None) -> None:
        config = plan.config
        self.plan = plan
        self.seed = SettledSeed(
            seed_of(config.sampler) if seed is None else seed,
            generator,
            sharded=config.num_replicas is not None,
        )
        self.passes = Passes()
        self.workers = WorkerPool(plan.device)
        self.bad_samples = BadSamples()
        """The record of samples that could not be used."""
        self.worker_restarts = 0
        """How often lost workers were replaced since the loader was built."""
        self.last: tuple[Any, tuple[FoundBad, ...]] | None = None
        """The request of the last delivered batch, and the samples that it could not use."""
        self.promised_length: int | None = None
        """What ``len()`` of an iterable dataset returned, if it was called."""
        self.dataset_memory = DatasetMemory(config.dataset)
        self._identity: tuple[int | None, Identity] | None = None

    def change(self, name: str, value: Any) -> None:
        """Take another value of an argument that changes no batch; other workers make the next
        pass, where it is one of theirs."""
        self.plan = replace(self.plan, config=replace(self.plan.config, **{name: value}))
        if name in OF_WORKERS:
            self.workers = self.workers.successor()

    # A pass

    def begin(self) -> Begun:
        """A new pass, its pipeline not started: at the first ``next()``, and again if a state is
        loaded before the first batch is delivered."""
        self.take_requested_epoch()
        plan, seed = self.plan, self.seed.draw()
        config = plan.config
        current = self.passes.begin(
            is_over=plan.is_over, skips_empty_rest=config.on_epoch_boundary == "next_epoch"
        )
        if plan.source is None and own_fingerprint(config.dataset) is None:
            _ = self.identity  # before anything is read: a dataset may keep what it has read
        if config.num_workers == 0 and plan.has_worker_states:
            current.start = with_dataset_state(
                current.start, self.dataset_memory, resumed=current.resumed
            )
            self.passes.note_start(current, current.start)
        policy = policy_of(plan, self.bad_samples.known)
        pipeline, has_new_workers = self.workers.take(plan, policy, seed, current.start)
        schedule = plan.schedule(
            current,
            seed=seed,
            has_new_workers=has_new_workers,
            promised_length=lambda: self.promised_length,
        )
        return Begun(current, plan, schedule, pipeline, self.workers, seed)

    def rebuild(self, begun: Begun) -> Pipeline:
        """A pipeline with new workers, not started, for a pass that has lost its own."""
        policy = policy_of(begun.plan, self.bad_samples.known)
        return begun.workers.renew(begun.plan, policy, self.seed.value, begun.current.place)

    def release(self, begun: Begun) -> None:
        """Keep persistent workers for the next pass, unless they are ahead of it, outdated, or
        dismissed."""
        is_current = begun.current.generation == self.passes.generation
        is_of_use = (
            begun.ended and is_current
            if begun.plan.has_worker_states
            else begun.plan.decoder is self.plan.decoder
        )
        keeps = self.plan.config.persistent_workers and is_of_use
        if keeps and begun.workers is self.workers:
            self.workers.keep(begun.pipeline)
        else:
            begun.pipeline.close()

    def finish(self, begun: Begun, batch: Any, *, position: int) -> Any:
        """The last steps on a batch, in the user's own thread: transformed, and pinned.

        Args:
            batch: as the pipeline gives it.
            position: of its first sample.
        """
        plan = begun.plan
        if plan.batch_transform is not None:
            batch = plan.batch_transform(
                batch,
                device=begun.workers.device,
                seed=begun.seed,
                epoch=begun.current.place.epoch,
                position=position,
            )
        pins = plan.config.pin_memory and plan.device is None
        return pin(batch) if pins and torch.accelerator.is_available() else batch

    def dismiss_workers(self) -> None:
        """End those that wait for the next pass; it gets others."""
        self.workers = self.workers.successor()

    def launch_workers(self) -> None:
        """Start the worker processes of the next pass, unless they wait for it already.

        Raises:
            WorkerLost: they died while they started.
        """
        policy = policy_of(self.plan, self.bad_samples.known)
        self.workers.launch(self.plan, policy, self.seed.value, self.passes.address())

    def take_requested_epoch(self) -> None:
        """What was told to a sampler of this package's ``set_epoch()`` counts as the loader's."""
        requested = take_requested_epoch(self.plan.config.sampler)
        if requested is not None:
            self.passes.request_epoch(requested)

    def draws(self) -> list[dict[str, Any]]:
        """What the recipes drew for the last delivered batch.

        Raises:
            LoaderError: there is none, or nobody knows.
        """
        if self.last is None:
            raise LoaderError(
                "draws() tells what was drawn for the last delivered batch, and this loader has "
                "delivered none. Remedy: call it after a batch has come out of iter(loader)"
            )
        return drawn_for(self.plan, *self.last)

    # Its state

    @property
    def identity(self) -> Identity:
        """What the loader is known by, described once for each length of the dataset."""
        length = self.plan.length
        if self._identity is None or self._identity[0] != length:
            self._identity = length, self.plan.identity
        return self._identity[1]

    def state(self, batches_ago: int) -> LoaderState:
        """The state after the last delivered batch, or after one before it.

        Raises:
            ValueError: ``batches_ago`` reaches further back than is remembered.
        """
        self.take_requested_epoch()
        address = self.passes.address(batches_ago)
        user = address.user
        if user is None and batches_ago == 0 and address == Address(address.epoch, 0):
            user = states_between_passes(self.plan, self.dataset_memory, self.seed)
        return LoaderState(
            seed=self.seed.value,
            epoch=address.epoch,
            position=address.position,
            fingerprint=self.identity.text,
            global_batch_size=self.plan.global_batch_size,
            index_digest=address.index_digest,
            ahead=json.dumps(address.ahead) if address.ahead else None,
            bad_samples=self.bad_samples.to_text(),
            user=None if user is None else user.to_dict(),
            lanes=lane_texts(self.plan, address),
        )

    def load(self, state_dict: Any, *, accept: Collection[str], strict: bool) -> None:
        """Go on from a state: decode it, check it, find its place, and only then apply it.

        Raises:
            StateMismatch: it is damaged, or of another loader; nothing was changed.
        """
        state = self._decoded(state_dict)
        plan, identity = self._checked(state, accept=accept, strict=strict)
        place = place_of(plan, state, self.dataset_memory, accept=accept)
        place = lane_place(plan, state, place)
        bad_samples = BadSamples.from_text(state.bad_samples)
        report_changes(Fingerprint.from_text(state.fingerprint), identity.fingerprint)
        report_unverified(identity.unverified)
        report_batch_size(state, plan.global_batch_size)
        self._apply(plan, state, place, bad_samples, takes_seed="seed" not in accept)

    def _decoded(self, state_dict: Any) -> LoaderState:
        if not is_torchdata_state(state_dict):
            return LoaderState.from_dict(state_dict)
        fingerprint = unsaid(self.identity.fingerprint)
        return from_torchdata(self.plan, state_dict, seed=self.seed.value, fingerprint=fingerprint)

    def _checked(
        self, state: LoaderState, *, accept: Collection[str], strict: bool
    ) -> tuple[Plan, Identity]:
        """The plan to go on with, which has the state's family of decoders, and what it is known
        by."""
        saved = Fingerprint.from_text(state.fingerprint)
        decoder = self.plan.decoder_like(saved.decoder)
        is_same = decoder is self.plan.decoder
        plan = self.plan if is_same else replace(self.plan, decoder=decoder)
        identity = self.identity if is_same else plan.identity
        identity.fingerprint.check(saved, accept=accept, position=state.position)
        if strict:
            check_proven(identity, saved, has_digest=state.index_digest is not None, accept=accept)
        check_fits(state, seed=self.seed.given, num_positions=plan.num_positions, accept=accept)
        return plan, identity

    def _apply(
        self,
        plan: Plan,
        state: LoaderState,
        place: Address,
        bad_samples: BadSamples,
        *,
        takes_seed: bool,
    ) -> None:
        if plan is not self.plan:
            self.plan, self._identity = plan, None
            self.workers.keep(None)
        if plan.has_worker_states:
            self.workers.keep(None)
        if takes_seed or self.seed.given is None:
            self.seed.load(state.seed)
        self.bad_samples = bad_samples
        self.take_requested_epoch()
        self.passes.load(place)
        if plan.memory is not None:
            put_sampler(plan.memory, place)
