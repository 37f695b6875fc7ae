"""A state of torchdata's StatefulDataLoader 0.11, read into checked fields.

A loader finishes the epoch of such a state. Every field is checked before anything is built, and an
error names the field by its path, such as ``_snapshot._main_snapshot._num_workers``.

The state does not name its sampler and dataset. If either torchdata or a user's object may have
written a part, both readings are given, and the loader selects the one that fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.randomness.generator_state import checked_generator_state
from stateful_gpu_loader.state.schema import MAX_POSITION, says_own_format

_REMEDY = "load what torchdata's StatefulDataLoader.state_dict() returned, unchanged"

_MULTIPROCESS = frozenset({"_snapshot", "_steps_since_snapshot"})
_MARKS = _MULTIPROCESS | {"_num_yielded", "_sampler_iter_yielded", "_iterator_finished"}
_BATCH_ITERATOR = frozenset({"samples_yielded", "sampler_state", "sampler_iter_state"})


def is_torchdata_state(state: Any) -> bool:
    """Whether ``state`` is not this package's and has at least one key of torchdata's states.

    One key is enough, so that :meth:`TorchdataState.from_dict` can name the missing ones.

    >>> is_torchdata_state({"_num_yielded": 3}), is_torchdata_state({"format": "other"})
    (True, False)
    """
    is_other = isinstance(state, Mapping) and not says_own_format(state)
    return is_other and not _MARKS.isdisjoint(state)


@dataclass(frozen=True, kw_only=True, eq=False)
class TorchdataWorker:
    """States of a user's objects in one worker, or in the main process if there are no workers."""

    dataset: Any
    """State of the dataset; None if it has none or is its own iterator."""
    iterator: Any
    """State of ``iter(dataset)`` for an iterable dataset; None if it has none."""
    ended: bool
    """Whether the iterable is known to be exhausted; False does not promise a sample."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TorchdataState:
    """A torchdata state, checked field by field.

    torchdata's workers take a snapshot every ``snapshot_every_n_steps`` batches. All fields except
    ``batches``, ``steps`` and ``finished`` describe the last snapshot. To continue, restore them,
    then skip ``steps`` batches.
    """

    num_workers: int
    """Number of workers; 0 if the main process did the loading."""
    iterable: bool
    """Whether the dataset was iterable-style."""
    finished: bool
    """Whether the iterator had raised StopIteration, so that the next pass is new. Right after the
    last batch it is still False."""
    batches: int
    """Number of batches delivered; too high after torchdata resumed an iterable without state, as
    it counts replayed batches twice."""
    steps: int
    """Number of these batches delivered after the snapshot."""
    requests: int
    """Number of items that the batch sampler had yielded, or the sampler with ``batch_size=None``.
    Higher than ``batches`` if a fetch failed or an iterable ended. Lower with ``in_order=False``,
    in which case the delivered batches are unknown."""
    samples: int | None
    """Number of indices that the sampler had yielded, including an incomplete last batch that
    ``drop_last`` left out. None with ``batch_size=None`` and for a user's batch sampler."""
    permutation: torch.Tensor | None
    """uint8 [5056]: state of the generator before the epoch's order was drawn from it, for
    :func:`shuffled_indices`; None if torchdata did not shuffle."""
    permutation_yielded: int | None
    """Number of indices of that order already yielded; None without ``permutation``."""
    sampler: Any
    """State of a user's sampler inside torchdata's batch sampler, or None."""
    sampler_iterator: Any
    """State of that sampler's iterator, or None; torchdata's own contains ``permutation``."""
    index_sampler: Any
    """State of a user's batch sampler, or of a user's sampler with ``batch_size=None``, or None."""
    index_iterator: Any
    """State of the index sampler's iterator, or None; torchdata's batch iterator has a state,
    too."""
    workers: tuple[TorchdataWorker, ...]
    """One entry for each worker, or one without workers; empty if no dataset and no iterator has a
    state."""
    next_worker: int
    """Number of the worker whose turn is next; 0 without workers."""

    @classmethod
    def from_dict(cls, state: Any) -> TorchdataState:
        """Check every field of ``state``; keys that torchdata 0.11 does not know are ignored.

        States of a user's objects are not checked, unless they have all keys of torchdata's
        iterators: ``samples_yielded``, or ``yielded`` and a tensor ``generator``.

        Raises:
            StateMismatch: a key is missing, of another type or out of range.

        >>> TorchdataState.from_dict({"_num_yielded": 3})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        stateful_gpu_loader.errors.StateMismatch: _iterator_finished differs: ...
        """
        fields = _Fields.of("", state)
        finished = fields.flag("_iterator_finished")
        if _MULTIPROCESS.isdisjoint(fields.values):
            workers, iterable = _read_workers([fields])
            return cls(
                num_workers=0,
                iterable=iterable,
                finished=finished,
                batches=fields.number("_num_yielded"),
                steps=0,
                workers=workers,
                next_worker=0,
                **_read_samplers(fields),
            )
        snapshot = fields.inner("_snapshot")
        main = snapshot.inner("_main_snapshot")
        num_workers = main.number("_num_workers", least=1)
        steps = fields.number("_steps_since_snapshot")
        last_worker = snapshot.number("_last_yielded_worker_id", most=num_workers - 1)
        workers, iterable = _read_workers(_worker_snapshots(snapshot, num_workers))
        return cls(
            num_workers=num_workers,
            iterable=iterable,
            finished=finished,
            batches=snapshot.number("_snapshot_step", most=MAX_POSITION - steps) + steps,
            steps=steps,
            workers=workers,
            next_worker=(last_worker + 1) % num_workers,
            **_read_samplers(main),
        )


def shuffled_indices(generator_state: torch.Tensor, n: int) -> npt.NDArray[np.int64]:
    """Draw an epoch's order like torchdata's RandomSampler without replacement.

    Args:
        generator_state: uint8 [5056], :attr:`TorchdataState.permutation`.
        n: length of the dataset.

    Returns:
        int64 [n], a permutation of ``range(n)``.

    Raises:
        StateMismatch: the state is not that of a CPU generator.
        ValueError: n is negative.

    >>> sorted(shuffled_indices(torch.Generator().manual_seed(0).get_state(), 5).tolist())
    [0, 1, 2, 3, 4]
    """
    if n < 0:
        raise ValueError(f"{n = } must not be negative. Remedy: pass the dataset's length")
    generator = torch.Generator("cpu")
    generator.set_state(checked_generator_state(generator_state, "generator"))
    # Without device="cpu", the user's default device would be used.
    order: npt.NDArray[np.int64] = torch.randperm(n, generator=generator, device="cpu").numpy()
    return order


def _invalid(field: str, saved: Any, wanted: str) -> StateMismatch:
    return StateMismatch(field, saved=saved, present=wanted, remedy=_REMEDY)


@dataclass(frozen=True)
class _Fields:
    """A dictionary in a state, and its path, for errors."""

    path: str
    values: Mapping[Any, Any]

    @classmethod
    def of(cls, path: str, value: Any) -> _Fields:
        if not isinstance(value, Mapping):
            raise _invalid(path or "state", value, "a dict")
        return cls(path, value)

    def name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def anything(self, key: str, wanted: str = "any value") -> Any:
        if key not in self.values:
            raise _invalid(self.name(key), f"only {sorted(map(str, self.values))}", wanted)
        return self.values[key]

    def inner(self, key: str) -> _Fields:
        return _Fields.of(self.name(key), self.anything(key, "a dict"))

    def number(self, key: str, *, least: int = 0, most: int = MAX_POSITION) -> int:
        wanted = f"an int from {least} to {most}"
        value = self.anything(key, wanted)
        if type(value) is int and least <= value <= most:
            return value
        raise _invalid(self.name(key), value, wanted)

    def flag(self, key: str) -> bool:
        value = self.anything(key, "a bool")
        if isinstance(value, bool):
            return value
        raise _invalid(self.name(key), value, "a bool")


def _read_samplers(main: _Fields) -> dict[str, Any]:
    """Return the fields of :class:`TorchdataState` that describe the samplers' progress."""
    index_iterator = innermost = main.anything("_sampler_iter_state")
    path = main.name("_sampler_iter_state")
    samples, sampler, sampler_iterator = None, None, None
    if (
        isinstance(index_iterator, Mapping)
        and "samples_yielded" in index_iterator
        and _BATCH_ITERATOR.issuperset(index_iterator)
    ):
        samples = _Fields(path, index_iterator).number("samples_yielded")
        sampler = index_iterator.get("sampler_state")
        sampler_iterator = innermost = index_iterator.get("sampler_iter_state")
        path += ".sampler_iter_state"
    permutation, permutation_yielded = None, None
    # A user's sampler may keep another kind of generator under these names.
    if (
        isinstance(innermost, Mapping)
        and set(innermost) == {"generator", "yielded"}
        and isinstance(innermost["generator"], torch.Tensor)
    ):
        permutation = checked_generator_state(innermost["generator"], f"{path}.generator")
        permutation_yielded = _Fields(path, innermost).number("yielded")
    return {
        "requests": main.number("_sampler_iter_yielded"),
        "samples": samples,
        "permutation": permutation,
        "permutation_yielded": permutation_yielded,
        "sampler": sampler,
        "sampler_iterator": sampler_iterator,
        "index_sampler": main.anything("_index_sampler_state"),
        "index_iterator": index_iterator,
    }


def _worker_snapshots(snapshot: _Fields, num_workers: int) -> list[_Fields]:
    kept = snapshot.inner("_worker_snapshots")
    # Check this first, because a wrong number of workers may be huge.
    if len(kept.values) != num_workers:
        wanted = f"worker_0 to worker_{num_workers - 1}"
        raise _invalid(kept.path, sorted(map(str, kept.values)), wanted)
    workers = [kept.inner(f"worker_{i}") for i in range(num_workers)]
    for i, worker in enumerate(workers):
        worker.number("worker_id", least=i, most=i)
    return workers


def _read_workers(places: list[_Fields]) -> tuple[tuple[TorchdataWorker, ...], bool]:
    """Return the non-empty states of workers, and whether the dataset is iterable."""
    iterable = places[0].anything("fetcher_state") is not None
    workers = []
    for fields in places:
        dataset, iterator, ended = fields.anything("dataset_state"), None, False
        if iterable:
            fetcher = fields.inner("fetcher_state")
            iterator, ended = fetcher.anything("dataset_iter_state"), fetcher.flag("fetcher_ended")
        elif fields.anything("fetcher_state") is not None:
            saved = fields.values["fetcher_state"]
            raise _invalid(fields.name("fetcher_state"), saved, "None, as in the first worker")
        workers.append(TorchdataWorker(dataset=dataset, iterator=iterator, ended=ended))
    if all(worker.dataset is None and worker.iterator is None for worker in workers):
        workers = []
    return tuple(workers), iterable
