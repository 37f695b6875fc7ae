"""Engine: makes a loader's batches and keeps its position."""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

from stateful_gpu_loader.datasets import as_source
from stateful_gpu_loader.datasets.lanes import LanePlan
from stateful_gpu_loader.engine.config import NEEDS_NEW_WORKERS
from stateful_gpu_loader.engine.fingerprint import (
    Identity,
    check_fits,
    check_proven,
    identity_of,
    report_batch_size,
    report_changes,
    report_unverified,
    without_descriptions,
)
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.makers.choice import drawn_for, policy_of
from stateful_gpu_loader.engine.plan import Plan
from stateful_gpu_loader.engine.resume.places import (
    lane_place,
    lane_texts,
    num_left,
    place_of,
    restore_sampler,
    start_of_pass,
    states_between_passes,
    text_of_ahead,
    with_present_sampler,
)
from stateful_gpu_loader.engine.resume.seek import existing_epoch, state_of_place
from stateful_gpu_loader.engine.resume.torchdata import from_torchdata
from stateful_gpu_loader.engine.sampler_link import (
    divides_data,
    pass_on_requested_epoch,
    pass_on_seed,
    rank_in_words,
    seed_of,
)
from stateful_gpu_loader.engine.schedules.positions import Division
from stateful_gpu_loader.engine.stats import LoaderStats, Tally
from stateful_gpu_loader.engine.user_objects import (
    DatasetMemory,
    length_of,
    warn_of_shuffle_buffer,
)
from stateful_gpu_loader.engine.workers.choice import runs_in_processes
from stateful_gpu_loader.engine.workers.worker_pool import WorkerPool
from stateful_gpu_loader.errors import LoaderError, NoSuchPlace
from stateful_gpu_loader.randomness.seed import SettledSeed
from stateful_gpu_loader.samplers import is_map
from stateful_gpu_loader.state.bad_samples import BadSamples
from stateful_gpu_loader.state.descriptions import own_fingerprint
from stateful_gpu_loader.state.epoch_progress import Address, Pass, Passes
from stateful_gpu_loader.state.schema import Fingerprint, LoaderState
from stateful_gpu_loader.state.torchdata import is_torchdata_state


class Engine:
    """Life of a loader: its plan, seed, passes, workers and state."""

    def __init__(self, plan: Plan) -> None:
        config = plan.config
        self.plan = plan
        self.passes = Passes(
            SettledSeed(
                seed_of(config.sampler) if config.seed is None else config.seed,
                config.generator,
                is_divided=partial(divides_data, config),
            )
        )
        self.tally = Tally()
        self.workers = WorkerPool(plan.device, self.tally)
        self.promised_length: int | None = None
        """Result of ``len()`` for an iterable dataset, if it was called."""
        self.dataset_memory = DatasetMemory(config.dataset)
        self._identity: tuple[int | None, Identity] | None = None
        self._may_lose_a_buffer = plan.is_iterable
        """Whether the first save must check for a shuffle buffer."""
        self._former_sampler: Any = None
        """Sampler that the loader was built with, once replaced."""

    @property
    def seed(self) -> SettledSeed:
        return self.passes.seed

    def change(self, name: str, value: Any) -> None:
        """Set an argument that changes no batch.

        A worker argument takes effect in the new workers of the next pass.
        """
        self.plan = replace(self.plan, config=replace(self.plan.config, **{name: value}))
        if name in NEEDS_NEW_WORKERS:
            self.workers = self.workers.successor()

    def follow(self, index_sampler: Any, *, dataset: Any, collate_fn: Any) -> None:
        """Use a sampler that a program assigned to the loader, before the first pass.

        Args:
            index_sampler: the object that DataLoader would iterate.

        Raises:
            LoaderError: a pass has begun or a state was loaded with another sampler, the dataset is
                not map-style, or the dataset or the ``collate_fn`` was replaced.
        """
        config = self.plan.config
        for name, present in (("dataset", dataset), ("collate_fn", collate_fn)):
            before = getattr(config, name)
            if present is not before:
                raise LoaderError(
                    f"{name} of the loader was replaced: {type(present).__name__} instead of "
                    f"{type(before).__name__}. Remedy: build a new loader with {name}="
                )
        if config.is_sampled_by(index_sampler):
            return
        name = "sampler" if config.batch_sampler is None else "batch_sampler"
        if not (is_map(dataset) and self.plan.is_read and self.passes.is_new):
            raise LoaderError(
                f"{name} of the loader was replaced by a {type(index_sampler).__name__}; the "
                f"dataset is a {type(dataset).__name__}. A sampler can be replaced only in a "
                "loader of a map-style dataset, before its first batch and before "
                f"load_state_dict(). Remedy: build the loader with {name}=. A property "
                "_index_sampler must always return the same object"
            )
        self._former_sampler = config.sampler
        self.plan, self._identity = Plan.of(config.sampled_by(index_sampler)), None

    # Passes

    def begin(self) -> tuple[Plan, int, Pass]:
        """Begin a pass; return its plan, its seed and the record of its deliveries."""
        self.take_requested_epoch()
        plan = self.plan
        config = plan.config
        current = self.passes.begin(
            is_over=plan.is_over, skips_empty_rest=config.on_epoch_boundary == "next_epoch"
        )
        seed = current.seed.draw()
        pass_on_seed(self._former_sampler, seed)
        if plan.source is None and own_fingerprint(config.dataset) is None:
            _ = self.identity  # computed before reading, because a dataset may cache what it reads
        if plan.memory is not None or (config.num_workers == 0 and plan.has_worker_states):
            start = start_of_pass(
                plan, current.start, self.dataset_memory, current.seed, resumed=current.resumed
            )
            self.passes.note_start(current, start)
        return plan, seed, current

    def dismiss_workers(self) -> None:
        """End the idle workers; the next pass starts new workers."""
        self.workers = self.workers.successor()

    def launch_workers(self) -> None:
        """Start the worker processes of the next pass, unless they are started already.

        Raises:
            WorkerLost: the workers died while they started.
        """
        plan, place = self.plan, self.passes.address()
        self.workers.launch(plan, self.policy(plan), self.seed.value, place)

    def policy(self, plan: Plan) -> BadSamplePolicy:
        """Return the policy for bad samples, with the bad samples that are known so far."""
        return policy_of(plan, self.passes.bad_samples.known)

    def take_requested_epoch(self) -> None:
        """Take over an epoch that was set on a sampler of this package."""
        pass_on_requested_epoch(self.plan.config.sampler, self.passes.request_epoch)

    def draws(self) -> list[dict[str, Any]]:
        """Return what the recipes drew for the last delivered batch.

        Raises:
            LoaderError: no batch was delivered, or its draws are not known.
        """
        last = self.passes.last
        if last is None:
            raise LoaderError(
                "draws() returns the draws of the last delivered batch, but this loader has "
                "delivered none. Remedy: call it after a batch has come out of iter(loader)"
            )
        return drawn_for(self.plan, last.request, last.bad)

    def stats(self) -> LoaderStats:
        calls = self.plan.calls
        makes_batches = calls is not None and calls.batch and calls.image is None
        return self.tally.stats(knows_samples=not makes_batches)

    def present_place(self) -> Address:
        """Return the position of the current pass, or the position where the next pass begins."""
        self.take_requested_epoch()
        plan, seed = self.plan, self.seed.value
        skips = plan.config.on_epoch_boundary == "next_epoch"

        def is_over(place: Address) -> bool:
            # A pass may skip an empty rest (Plan.is_over).
            asks = skips or (plan.order is not None and place.user is None)
            return asks and _batches_of(plan, place, seed)[1] == 0

        return self.passes.present(is_over=is_over, skips_empty_rest=skips)

    def batches(self) -> tuple[int | None, int | None]:
        """Return the numbers of delivered and remaining batches of this rank in the present epoch.

        If the length of the epoch is known, the rest is cut into batches of the present size, and
        all other batches of a whole epoch count as delivered.

        Returns:
            Both numbers; None for an unknown one.
        """
        return _batches_of(self.plan, self.present_place(), self.seed.value)

    def twin(self) -> Engine:
        """Return an engine for peek(): its next pass begins with the loader's next batch.

        Everything that making the batch changes is copied: the sampler, the passes, the record of
        bad samples and the workers. A dataset that is iterated or has a state is copied too, unless
        worker processes hold copies.

        Raises:
            LoaderError: the sampler or the dataset cannot be copied.
        """
        twin, plan, passes, seed = copy.copy(self), self.plan, self.passes, self.seed
        config = plan.config
        has_processes = runs_in_processes(plan)
        num_workers = 0
        if has_processes:
            # Without worker states one worker is enough.
            num_workers = config.num_workers if plan.has_worker_states else 1
        changes: dict[str, Any] = {
            "num_workers": num_workers,
            "prefetch_factor": 1 if has_processes else None,
            "persistent_workers": False,
        }
        if passes.is_in_progress:
            # The current pass must end rather than continue with the next epoch.
            changes["on_epoch_boundary"] = "empty"
        moved: dict[str, Any] = {"seed": self.seed}
        if plan.memory is None:
            moved, changes["sampler"] = {}, copy.copy(config.sampler)
            seed = copy.deepcopy(self.seed)
        else:
            moved |= {"sampler": config.sampler, "batch_sampler": config.batch_sampler}
        moves_dataset = plan.has_worker_states and not has_processes
        if moves_dataset:
            moved["dataset"] = config.dataset
        # One call copies all objects, so that shared generators stay shared.
        shared = None if moves_dataset else config.dataset
        copies, memory = _copied((moved, plan.memory), shared)
        seed = copies.pop("seed", seed)
        config = replace(config, **changes, **copies)
        source, decoder = plan.source, plan.decoder
        if moves_dataset and source is not None:
            source = as_source(config.dataset)
        if plan.finishes_images and decoder is not None:
            decoder = plan.new_decoder(prefer=decoder.family)  # a decoder serves one thread
        twin.plan = replace(plan, config=config, memory=memory, source=source, decoder=decoder)
        twin.dataset_memory = self.dataset_memory.twin(config.dataset)
        twin.tally = Tally()
        twin.workers = self.workers.twin(twin.tally)
        twin.passes = passes.twin(seed)
        if memory is not None and passes.is_in_progress:
            restore_sampler(memory, twin.passes.address())
        return twin

    # State

    @property
    def identity(self) -> Identity:
        """The loader's identity, recomputed only when the length of the dataset changes."""
        length = self.plan.length
        if self._identity is None or self._identity[0] != length:
            self._identity = length, identity_of(self.plan)
        return self._identity[1]

    def state(self, batches_ago: int) -> LoaderState:
        """Return the state after the last delivered batch, or after an earlier batch.

        Raises:
            ValueError: ``batches_ago`` reaches further back than the remembered batches.
        """
        self.take_requested_epoch()
        passes = copy.copy(self.passes)  # another thread may load or begin a pass meanwhile
        address, seed = passes.address(batches_ago), passes.seed
        user = address.user
        if address.position and self._may_lose_a_buffer:
            self._may_lose_a_buffer = False
            warn_of_shuffle_buffer(self.plan.config.dataset)
        if user is None and batches_ago == 0 and address == Address(address.epoch, 0):
            user = states_between_passes(self.plan, self.dataset_memory, seed)
        elif batches_ago == 0 and passes.is_between:
            user = with_present_sampler(self.plan, user, seed)
        if user is not None and user.is_as_built and not address.position:
            user = None
        if self.plan.memory is not None:
            self.plan.memory.warn_of_large()
        own, text, rank = self.identity.fingerprint, self.identity.text, _drawn_by(seed)
        return LoaderState(
            seed=seed.value,
            epoch=address.epoch,
            position=address.position,
            fingerprint=text if rank is None else replace(own, seed_drawn_by=rank).to_text(),
            global_batch_size=self.plan.global_batch_size,
            index_digest=address.index_digest,
            ahead=text_of_ahead(address.ahead),
            bad_samples=passes.bad_samples.to_text(),
            user=None if user is None else user.to_dict(),
            lanes=lane_texts(self.plan, address),
        )

    def load(self, state_dict: Any, *, accept: Collection[str], strict: bool) -> None:
        """Decode a state, check it, find its position, and only then apply it.

        Raises:
            StateMismatch: the state is damaged or belongs to another loader; nothing was changed.
        """
        state = self._decoded(state_dict)
        saved = Fingerprint.from_text(state.fingerprint)
        plan, identity = self._checked(state, saved, accept=accept, strict=strict)
        place = self._resolved(plan, state, accept=accept)
        bad_samples = BadSamples.from_text(state.bad_samples)
        report_changes(saved, identity.fingerprint)
        report_unverified(identity.unverified)
        report_batch_size(state, plan.global_batch_size)
        self._apply(plan, state, place, bad_samples, takes_seed="seed" not in accept)

    def seek(
        self, *, epoch: int, position: int | None, samples: int | None, percent: float | None
    ) -> None:
        """Load the state that the loader would have at another position.

        Raises:
            NoSuchPlace: the position does not exist, or its state cannot be computed; nothing was
                changed.
        """
        plan, state = self.plan, self.state(batches_ago=0)
        if plan.has_worker_states:
            raise NoSuchPlace(
                "the state of another position cannot be computed: the dataset, "
                f"{type(plan.config.dataset).__name__}, is iterated or has a state, which only "
                "iterating changes. Remedy: iterate the loader up to the position"
            )
        length = None
        if plan.order is not None and not plan.is_endless:
            length = plan.order.of_epoch(state.seed, existing_epoch(epoch)).n
        target = state_of_place(
            state, epoch=epoch, position=position, samples=samples, percent=percent, length=length
        )
        place = self._resolved(plan, target, accept=())
        self._apply(plan, target, place, self.passes.bad_samples, takes_seed=True)

    def _decoded(self, state_dict: Any) -> LoaderState:
        if not is_torchdata_state(state_dict):
            return LoaderState.from_dict(state_dict)
        fingerprint = replace(
            without_descriptions(self.identity.fingerprint), seed_drawn_by=_drawn_by(self.seed)
        )
        return from_torchdata(self.plan, state_dict, seed=self.seed.value, fingerprint=fingerprint)

    def _checked(
        self, state: LoaderState, saved: Fingerprint, *, accept: Collection[str], strict: bool
    ) -> tuple[Plan, Identity]:
        """Return the plan to resume with, and its identity."""
        decoder = self.plan.decoder_like(saved.decoder)
        is_same = decoder is self.plan.decoder
        plan = self.plan if is_same else replace(self.plan, decoder=decoder)
        identity = self.identity if is_same else identity_of(plan)
        identity.fingerprint.check(saved, accept=accept, position=state.position)
        if self.seed.given is None and "seed" not in accept:
            replace(identity.fingerprint, seed_drawn_by=rank_in_words()).check_rank(saved)
        if strict:
            check_proven(identity, saved, has_digest=state.index_digest is not None, accept=accept)
        length = plan.num_positions
        if length is not None and plan.order is not None and 0 < state.position <= length:
            # Some orders have epochs of different lengths.
            length = plan.order.of_epoch(state.seed, state.epoch).n
        check_fits(state, seed=self.seed.given, num_positions=length, accept=accept)
        return plan, identity

    def _resolved(self, plan: Plan, state: LoaderState, *, accept: Collection[str]) -> Address:
        place = place_of(plan, state, self.dataset_memory, accept=accept)
        return lane_place(plan, state, place)

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
        seed = self.seed
        if takes_seed or seed.given is None:
            saved = Fingerprint.from_text(state.fingerprint)
            seed = seed.loaded(state.seed, is_drawn=saved.seed_drawn_by is not None)
        self.take_requested_epoch()
        self.passes.load(place, bad_samples, seed)
        if plan.memory is not None:
            restore_sampler(plan.memory, place)


def _drawn_by(seed: SettledSeed) -> str | None:
    """Return the rank whose generator drew the seed; None if all ranks have the same seed."""
    return rank_in_words() if seed.is_drawn else None


def _batches_of(plan: Plan, place: Address, seed: int) -> tuple[int | None, int | None]:
    if plan.lanes is not None:
        return _of_lanes(plan, plan.lanes, place, seed)
    division, position, num_samples = plan.division, place.position, None
    use = plan.sampler_use
    if plan.order is not None and not plan.is_endless:
        num_samples = plan.order.of_epoch(seed, place.epoch).n
    elif use is not None:
        num_samples = length_of(use.sampler)
        if use.yields_batches:
            done = _counted(place)
            if done is None or num_samples is None or done > num_samples:
                return done, None
            return done, num_samples - done
        division = Division(batch_size=use.batch_size, drop_last=use.drop_last)
        if place.user is not None:
            # torchdata's states hold no position after a snapshot.
            position = place.user.base + place.user.steps * use.batch_size
            position = position if num_samples is None else min(position, num_samples)
    if division is None:
        return position, None  # the positions of iterable datasets count batches
    ahead = len(place.ahead)
    if num_samples is None or position > num_samples:
        return -(-position // division.global_batch_size) + ahead, None
    left = division.num_steps(num_samples - position) - ahead
    return division.num_steps(num_samples) - left, left


def _of_lanes(plan: Plan, lanes: LanePlan, place: Address, seed: int) -> tuple[int, int | None]:
    division = plan.lane_division
    whole = lanes.num_steps(seed, place.epoch, division)
    if whole is None:
        return place.position, None
    if division.num_replicas > 1:
        return place.position, whole - place.position
    # A single rank ends earlier after dropped samples.
    return place.position, num_left(lanes, seed, place.epoch, division, place.lanes or {})


def _counted(place: Address) -> int | None:
    """Return the number of a batch sampler's delivered batches."""
    counted, steps = (None, 0) if place.user is None else (place.user.batches, place.user.steps)
    if counted is None and place.position:
        return None
    return (counted or 0) + steps + len(place.ahead)


def _copied(things: Any, shared: Any) -> Any:
    """Return deep copies that still refer to the same ``shared`` object."""
    try:
        return copy.deepcopy(things, {id(shared): shared})
    except Exception as error:
        names = ", ".join(type(thing).__name__ for thing in things[0].values())
        raise LoaderError(
            f"peek() makes the next batch with copies of the objects that this changes ({names}), "
            f"but copying failed: {error!r}. Remedy: remove members that cannot be copied (open "
            "files, generators), define __deepcopy__(), or take the batch with next() and keep it"
        ) from error
