"""From a state that torchdata's StatefulDataLoader wrote to one of ours (A4).

The epoch that was interrupted is finished with the indices that torchdata would have delivered;
augmentations are ours from there on, and so are the epochs after it.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import (
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from stateful_gpu_loader.assembly import own_sampler_of
from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.frozen import freeze
from stateful_gpu_loader.generator_text import generator_to_text
from stateful_gpu_loader.state import Fingerprint, LoaderState
from stateful_gpu_loader.torchdata_states import TorchdataState
from stateful_gpu_loader.user_states import UserStates, worker_state

_SHUFFLERS = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def from_torchdata(
    loader: Any,
    state: Any,
    *,
    seed: int,
    fingerprint: Fingerprint,
    global_batch_size: int | None,
) -> LoaderState:
    """The state of ours that goes on where torchdata's stands.

    Args:
        loader: that it is loaded into.
        state: what torchdata's ``state_dict()`` returned.
        seed: of the loader, for what torchdata's state does not decide.
        fingerprint, global_batch_size: of the loader.

    Raises:
        StateMismatch: it is damaged, or does not say enough to go on from it exactly.
    """
    saved = TorchdataState.from_dict(state)
    kind = "iterable" if fingerprint.order == "iterable" else "map-style"
    if saved.iterable != (kind == "iterable"):
        raise _unlike("dataset", "iterable" if saved.iterable else "map-style", kind)
    workers = _workers(loader, saved)
    if saved.iterable:
        base, sampler, permutation, end = saved.batches - saved.steps, None, None, None
        one_batch = 1
    else:
        if saved.requests < saved.batches - saved.steps:
            raise _unlike("in_order", False, "an order that says which batches were delivered")
        one_batch = loader.batch_size or 1
        end = fingerprint.length
        base = _indices_delivered(loader, saved, one_batch)
        if end is None:
            sampler, permutation = _sampler(loader, saved), None
        else:
            base = min(base, end)
            sampler, permutation = None, _permutation(saved, fingerprint, loader.num_replicas)
    position = base + saved.steps * one_batch
    user = UserStates(
        sampler=sampler,
        permutation=None if saved.finished else permutation,
        num_workers=None if workers is None else saved.num_workers,
        workers=workers,
        next_worker=0 if saved.finished or workers is None else saved.next_worker,
        base=0 if saved.finished else base,
        steps=0 if saved.finished else saved.steps,
    )
    return LoaderState(
        seed=seed,
        epoch=1 if saved.finished else 0,
        position=0 if saved.finished else min(position, end or position),
        fingerprint=fingerprint.to_text(),
        global_batch_size=global_batch_size,
        user=user.to_dict(),
    )


def _indices_delivered(loader: Any, saved: TorchdataState, one_batch: int) -> int:
    """Of the sampler's, at the snapshot."""
    if saved.samples is not None:
        return saved.samples
    sampler, yields_batches = own_sampler_of(loader)
    if not yields_batches and loader.batch_size is None and loader.batch_sampler is not None:
        return saved.requests * int(loader.batch_sampler.batch_size)
    if yields_batches and saved.index_sampler is None and saved.index_iterator is None:
        name = type(sampler).__name__
        raise _unlike(
            "batch_sampler", f"{saved.requests} batches of unknown size", f"{name} without a state"
        )
    return saved.requests * one_batch


def _permutation(saved: TorchdataState, fingerprint: Fingerprint, num_replicas: Any) -> str | None:
    """The generator of the epoch's order, as text; None for the dataset's own order."""
    if saved.sampler is not None or saved.index_sampler is not None:
        raise _unlike("sampler", "the state of a sampler", "none: the loader has its own order")
    if num_replicas is not None:
        raise _unlike("num_replicas", None, num_replicas)
    shuffled = saved.permutation is not None
    if shuffled != fingerprint.shuffle:
        raise _unlike("shuffle", shuffled, fingerprint.shuffle)
    counted = saved.requests if saved.samples is None else saved.samples
    if shuffled and saved.permutation_yielded != counted:
        raise _unlike("sampler", f"{saved.permutation_yielded} indices of its own", counted)
    return None if saved.permutation is None else generator_to_text(saved.permutation)


def _sampler(loader: Any, saved: TorchdataState) -> bytes | None:
    """The mark of a user's sampler; None for one that is iterated again from its start."""
    is_inside = loader.batch_size is not None
    state = saved.sampler if is_inside else saved.index_sampler
    iterator = saved.sampler_iterator if is_inside else saved.index_iterator
    sampler = own_sampler_of(loader)[0]
    if type(sampler) is StatefulDistributedSampler:
        return None  # it tells less than the number of its indices, see has_own_state()
    if state is not None or iterator is not None:
        mark = {
            "kind": "state",
            "sampler": state,
            "iterator": None if saved.finished else iterator,
            "exhausted": False,
            "attributes": {},
            "generators": {},
        }
        return freeze(mark, type(sampler).__name__)
    if type(sampler) in _SHUFFLERS and getattr(sampler, "generator", None) is None:
        raise _unlike(
            "sampler",
            "no word of how it was shuffled",
            f"{type(sampler).__name__} without generator=",
        )
    return None


def _workers(loader: Any, saved: TorchdataState) -> tuple[bytes | None, ...] | None:
    """The states of the datasets and their iterators."""
    name = type(loader.dataset).__name__
    if saved.finished and saved.num_workers and not loader.persistent_workers:
        return None
    if saved.workers:
        states = [
            # Between passes a dataset that is its own iterator is a dataset again.
            worker_state(dataset=worker.iterator if worker.dataset is None else worker.dataset)
            if saved.finished
            else worker_state(
                # An exhausted one is not iterated again, so that its dataset has to take the state.
                dataset=worker.iterator
                if worker.ended and worker.dataset is None
                else worker.dataset,
                iterator=None if worker.ended else worker.iterator,
                ended=worker.ended,
            )
            for worker in saved.workers
        ]
    elif saved.iterable and saved.batches and not saved.finished:
        states = _read_again(loader, saved)
    else:
        return None
    return tuple(freeze(state, name) for state in states)


def _read_again(loader: Any, saved: TorchdataState) -> list[dict[str, Any]]:
    """Of an iterable without state: how much each worker has read."""
    count = max(1, saved.num_workers)
    batches = saved.batches - saved.steps
    fetches = [len(range(worker, batches, count)) for worker in range(count)]
    if batches % count != saved.next_worker % count:
        raise _unlike(
            "user's workers", "a worker that had ended before the others", "one without a state"
        )
    return [
        worker_state(fetches=number, samples=number * (loader.batch_size or 1))
        for number in fetches
    ]


def _unlike(field: str, saved: Any, present: Any) -> StateMismatch:
    return StateMismatch(
        field,
        saved=saved,
        present=present,
        remedy="torchdata's state does not fit: build the loader as the one it was saved with, or "
        "finish the epoch there and start the next one here",
    )
