"""Converts a state of torchdata's StatefulDataLoader to a state of this package.

The interrupted epoch is finished with torchdata's indices. Later augmentations and epochs are this
package's.
"""

from __future__ import annotations

import copy
from typing import Any

from torch.utils.data import (
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from stateful_gpu_loader.engine.config import LoaderConfig
from stateful_gpu_loader.engine.plan import Plan
from stateful_gpu_loader.engine.schedules.sampler_feed import has_own_state
from stateful_gpu_loader.engine.schedules.sampler_snapshot import state_mark
from stateful_gpu_loader.engine.user_objects import length_of
from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.randomness.generator_state import generator_to_text
from stateful_gpu_loader.randomness.global_generators import caller_generators_restored
from stateful_gpu_loader.samplers import SequentialOrder, ShuffledOrder
from stateful_gpu_loader.state.schema import Fingerprint, LoaderState, Stateful
from stateful_gpu_loader.state.torchdata import TorchdataState, TorchdataWorker
from stateful_gpu_loader.state.user_states import UserStates, freeze, worker_state

_SHUFFLERS = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def from_torchdata(plan: Plan, state: Any, *, seed: int, fingerprint: Fingerprint) -> LoaderState:
    """Return a state that continues from the position of torchdata's.

    Args:
        plan: plan of the loader that the state is loaded into.
        state: result of torchdata's ``state_dict()``.
        seed: seed of the loader, for everything else.

    Raises:
        StateMismatch: the state is damaged, or not sufficient to resume exactly.
    """
    config, saved = plan.config, TorchdataState.from_dict(state)
    kind = "iterable" if fingerprint.order == "iterable" else "map-style"
    if saved.iterable != (kind == "iterable"):
        raise _mismatch("dataset", "iterable" if saved.iterable else "map-style", kind)
    workers = _workers(config, saved)
    if saved.iterable:
        base, sampler, permutation, end = saved.batches - saved.steps, None, None, None
        position = saved.batches
    else:
        if saved.requests < saved.batches - saved.steps:
            raise _mismatch("in_order", False, "an order that shows which batches were delivered")
        one_batch = config.samples_a_batch or 1
        end = plan.num_positions
        base = _indices_delivered(config, saved, one_batch)
        if saved.steps and saved.samples and -(-saved.samples // one_batch) != saved.requests:
            raise _mismatch("batch_size", f"{saved.samples} in {saved.requests} batches", one_batch)
        if end is None:
            sampler, permutation = _sampler(config, saved), None
            position = base + saved.steps  # a lower bound; see MapSchedule
        else:
            base = min(base, end)
            sampler, permutation = None, _permutation(saved, fingerprint, config.num_replicas)
            position = min(base + saved.steps * one_batch, end)
            if config.drop_last and end - position < one_batch:
                position = end
    user = UserStates(
        sampler=sampler,
        permutation=None if saved.finished else permutation,
        num_workers=None if workers is None else saved.num_workers,
        workers=workers,
        next_worker=0 if saved.finished or workers is None else saved.next_worker,
        base=0 if saved.finished else base,
        steps=0 if saved.finished else saved.steps,
        batches=_batches_counted(config, saved),
    )
    return LoaderState(
        seed=seed,
        epoch=1 if saved.finished else 0,
        position=0 if saved.finished else position,
        fingerprint=fingerprint.to_text(),
        global_batch_size=plan.global_batch_size,
        user=user.to_dict(),
    )


def _indices_delivered(config: LoaderConfig, saved: TorchdataState, one_batch: int) -> int:
    """Return the number of the sampler's indices that were delivered at the snapshot."""
    if saved.samples is not None:
        return saved.samples
    sampler, yields_batches = config.own_sampler, config.yields_batches
    if yields_batches and saved.index_sampler is None and saved.index_iterator is None:
        name = type(sampler).__name__
        raise _mismatch(
            "batch_sampler", f"{saved.requests} batches of unknown size", f"{name} without a state"
        )
    counted, length = saved.requests * one_batch, length_of(sampler)
    return counted if yields_batches or length is None else min(counted, length)


def _batches_counted(config: LoaderConfig, saved: TorchdataState) -> int | None:
    """Return the number of batches of a batch sampler at the snapshot; None without one."""
    if saved.iterable or not config.yields_batches:
        return None
    return 0 if saved.finished else saved.batches - saved.steps


def _permutation(saved: TorchdataState, fingerprint: Fingerprint, num_replicas: Any) -> str | None:
    """Return the generator of the epoch's order as text; None for the dataset's own order."""
    iterator = saved.index_iterator if saved.samples is None else saved.sampler_iterator
    is_foreign = saved.permutation is None and iterator is not None
    if saved.sampler is not None or saved.index_sampler is not None or is_foreign:
        raise _mismatch("sampler", "the state of a sampler", "none: the loader has its own order")
    if num_replicas is not None:
        raise _mismatch("num_replicas", None, num_replicas)
    if fingerprint.order not in (SequentialOrder.algorithm, ShuffledOrder.algorithm):
        raise _mismatch("order", "torchdata's", fingerprint.order)
    shuffled = saved.permutation is not None
    if shuffled != fingerprint.shuffle:
        raise _mismatch("shuffle", shuffled, fingerprint.shuffle)
    counted = saved.requests if saved.samples is None else saved.samples
    if shuffled and saved.permutation_yielded != counted:
        raise _mismatch("sampler", f"{saved.permutation_yielded} indices of its own", counted)
    return None if saved.permutation is None else generator_to_text(saved.permutation)


def _sampler(config: LoaderConfig, saved: TorchdataState) -> bytes | None:
    """Return the mark of a user's sampler; None to iterate it from its start."""
    is_inside = config.batch_size is not None
    state = saved.sampler if is_inside else saved.index_sampler
    iterator = saved.sampler_iterator if is_inside else saved.index_iterator
    sampler = config.own_sampler
    if type(sampler) is StatefulDistributedSampler:
        return None  # its state lacks the number of delivered indices, see has_own_state()
    ended = _ended_with_a_short_batch(saved, sampler, config.batch_size)
    if saved.finished and saved.num_workers and state is not None and not ended:
        state = _at_its_end(sampler, state, iterator)
    if state is not None or iterator is not None:
        mark = state_mark(
            state,
            None if saved.finished else iterator,
            exhausted=ended and not saved.finished,
        )
        return freeze(mark, type(sampler).__name__)
    if has_own_state(sampler) and (saved.requests or saved.finished):
        raise _mismatch(
            "sampler", "no state of a sampler", f"{type(sampler).__name__}, which has a state"
        )
    if type(sampler) in _SHUFFLERS and getattr(sampler, "generator", None) is None:
        raise _mismatch(
            "sampler",
            "no information on how it was shuffled",
            f"{type(sampler).__name__} without generator=",
        )
    return None


def _ended_with_a_short_batch(saved: TorchdataState, sampler: Any, batch_size: int | None) -> bool:
    """Whether the sampler had ended at the snapshot.

    Its state may then already be that of its next pass. The batch size, which may have changed, is
    used only if nothing else decides.
    """
    samples = saved.samples
    if not samples or not saved.requests:
        return False
    if samples % saved.requests:
        return True
    is_short = 0 < saved.requests * (batch_size or 1) - samples < (batch_size or 1)
    return is_short and samples == length_of(sampler)


def _at_its_end(sampler: Any, state: Any, iterator_state: Any) -> Any:
    """Return the sampler's state at the end of its pass.

    With workers, torchdata saves the state at the last snapshot, so a copy iterates the rest of the
    pass.
    """
    try:
        copied, state, iterator_state = copy.deepcopy((sampler, state, iterator_state))
        with caller_generators_restored():
            copied.load_state_dict(state)
            iterator: Any = iter(copied)
            if iterator_state is not None:
                iterator.load_state_dict(iterator_state)
            while next(iterator, copied) is not copied:
                pass
            return copied.state_dict()
    except Exception as error:
        name = type(sampler).__name__
        raise _mismatch(
            "sampler", "a state before its pass ended", f"{name}, which fails: {error!r}"
        ) from error


def _workers(config: LoaderConfig, saved: TorchdataState) -> tuple[bytes | None, ...] | None:
    """Return the states of the workers' datasets and iterators; None if there are none."""
    name = type(config.dataset).__name__
    if saved.finished and saved.num_workers and not config.persistent_workers:
        return None
    if saved.workers:
        states = [
            worker_state(
                dataset=_dataset_state(config, worker, saved.finished),
                iterator=None if worker.ended or saved.finished else worker.iterator,
                ended=worker.ended and not saved.finished,
            )
            for worker in saved.workers
        ]
    elif saved.iterable and saved.batches and not saved.finished:
        states = _read_again(config, saved)
    else:
        return None
    return tuple(freeze(state, name) for state in states)


def _dataset_state(config: LoaderConfig, worker: TorchdataWorker, finished: bool) -> Any:
    """Return the state of a worker's dataset.

    torchdata saves a dataset that is its own iterator as the iterator. Without an iterator, after
    the pass's end, the dataset must load it.
    """
    is_over = worker.ended or finished
    if worker.dataset is None and is_over and isinstance(config.dataset, Stateful):
        return worker.iterator
    return worker.dataset


def _read_again(config: LoaderConfig, saved: TorchdataState) -> list[dict[str, Any]]:
    """Return how much each worker has read of an iterable without a state."""
    count = max(1, saved.num_workers)
    batches = saved.batches - saved.steps
    fetches = [len(range(worker, batches, count)) for worker in range(count)]
    # The next worker alone does not prove it.
    if saved.requests != batches or batches % count != saved.next_worker % count:
        raise _mismatch(
            "user's workers",
            f"{saved.requests} fetches for {batches} batches: one failed, or a worker had ended "
            "before the others",
            "an iterable without a state",
        )
    return [
        worker_state(fetches=number, samples=number * (config.batch_size or 1))
        for number in fetches
    ]


def _mismatch(field: str, saved: Any, present: Any) -> StateMismatch:
    return StateMismatch(
        field,
        saved=saved,
        present=present,
        remedy="torchdata's state does not fit: build the loader like the one that saved it, or "
        "finish the epoch there and start the next epoch here",
    )
