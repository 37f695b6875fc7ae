"""States of the user's own objects at a place in a pass; ``user`` in a loader's state.

They are frozen as bytes, which do not change when the objects continue. The main process unpickles
them only when the loader's state is requested, into a fresh object at each call. The bytes stay
within one job's processes.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from stateful_gpu_loader.errors import LoaderError, StateMismatch
from stateful_gpu_loader.state.tensors import bytes_of, is_plain, tensor_of


def freeze(state: Any, owner: str) -> bytes:
    """Pickle a state.

    Args:
        state: value that a user's object returned.
        owner: name of the object, for the error.

    Raises:
        LoaderError: the state cannot be pickled.

    >>> thaw(freeze({"i": 3}, "MySampler"))
    {'i': 3}
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(state)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise LoaderError(
            f"state_dict() of {owner} returned {type(state).__name__} that cannot be copied: "
            f"{error}. Remedy: return plain values, arrays and tensors"
        ) from error
    return buffer.getvalue()


def thaw(frozen: bytes) -> Any:
    """Return a fresh copy of the state."""
    return pickle.loads(frozen)


def _plain_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Pickle a tensor by its bytes, in a third of torch's time."""
    if not is_plain(tensor):
        return tuple(tensor.__reduce_ex__(2))
    data: Any = bytes_of(tensor)
    return tensor_of, (pickle.PickleBuffer(data), tensor.dtype, tuple(tensor.shape))


class _Pickler(pickle.Pickler):
    dispatch_table = copyreg.dispatch_table.copy()
    dispatch_table[torch.Tensor] = _plain_tensor


_FIELDS: dict[str, tuple[type, ...]] = {
    "sampler": (dict, type(None)),
    "permutation": (str, type(None)),
    "num_workers": (int, type(None)),
    "workers": (list, tuple, type(None)),
    "next_worker": (int,),
    "base": (int,),
    "steps": (int,),
    "batches": (int, type(None)),
}
_MAX_COUNT = 1 << 62
"""Upper bound of all counts, so that their sums stay within 64 bits."""
_WORKER_FIELDS: dict[str, tuple[type, ...]] = {
    "dataset": (object,),
    "iterator": (object,),
    "fetches": (int,),
    "samples": (int,),
    "ended": (bool,),
    "digest": (str, type(None)),
    "failed": (list, tuple),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UserStates:
    """States of a user's sampler, dataset and iterators at the start of a resumed pass.

    >>> states = UserStates(num_workers=0, workers=(freeze(worker_state(dataset={"i": 3}), ""),))
    >>> UserStates.from_dict(states.to_dict()).to_dict()["workers"][0]["dataset"]
    {'i': 3}
    """

    sampler: bytes | None = None
    """Frozen state of the sampler; None if the sampler begins as it was built."""
    permutation: str | None = None
    """Text of the generator that orders this epoch as torchdata would have done."""
    num_workers: int | None = None
    """Number of workers of the loader, if the workers have state."""
    workers: tuple[bytes | None, ...] | None = None
    """Frozen :func:`worker_state` of each worker; None for a worker that starts from the
    beginning."""
    next_worker: int = 0
    """Worker that makes the next batch at ``base``."""
    base: int = 0
    """Position at which all these states were taken."""
    steps: int = 0
    """Number of batches delivered since ``base``, which a resumed pass makes again without
    delivering them."""
    batches: int | None = None
    """Number of batches of a user's batch sampler before ``base``; None in other and older
    states."""
    pending: frozenset[int] = frozenset()
    """Workers of this process that still have to load their state; not saved."""

    @property
    def is_as_built(self) -> bool:
        """Whether all objects begin as they were built."""
        return self.batches is None and not (
            self.sampler or self.permutation or self.workers or self.next_worker or self.steps
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a fresh dictionary of plain values and the states of the user's objects."""
        counted = {} if self.batches is None else {"batches": self.batches}
        return {
            "sampler": _thawed(self.sampler),
            "permutation": self.permutation,
            "num_workers": self.num_workers,
            "workers": None if self.workers is None else list(map(_thawed, self.workers)),
            "next_worker": self.next_worker,
            "base": self.base,
            "steps": self.steps,
            **counted,
        }

    def without_digests(self) -> UserStates:
        """Return the same states without the digests of samples to be read again."""
        workers = [None if worker is None else thaw(worker) for worker in self.workers or ()]
        unproven = tuple(
            None if worker is None else _frozen({**worker, "digest": None}) for worker in workers
        )
        return replace(self, workers=None if self.workers is None else unproven)

    @classmethod
    def from_dict(cls, user: Any) -> UserStates:
        """Check and copy a dictionary from :meth:`to_dict`.

        Raises:
            StateMismatch: a field is missing, unknown or of another type.
        """
        if isinstance(user, dict):
            user = {"batches": None, **user}
        _check("user", user, _FIELDS)
        workers = user["workers"]
        for number, worker in enumerate(workers or ()):
            if worker is not None:
                name = f"user's worker {number}"
                if isinstance(worker, dict):
                    worker = {"failed": [], **worker}
                _check(name, worker, _WORKER_FIELDS, newer={"digest"})
                _check_failed(name, worker["failed"])
        return cls(
            sampler=None if user["sampler"] is None else _loaded("sampler", user["sampler"]),
            permutation=user["permutation"],
            num_workers=user["num_workers"],
            workers=None if workers is None else tuple(map(_loaded_worker, workers)),
            next_worker=user["next_worker"],
            base=user["base"],
            steps=user["steps"],
            batches=user["batches"],
        )


def worker_state(
    *,
    dataset: Any = None,
    iterator: Any = None,
    fetches: int = 0,
    samples: int = 0,
    ended: bool = False,
    digest: str | None = None,
    failed: Sequence[Sequence[int]] = (),
) -> dict[str, Any]:
    """Return the state of one worker.

    Args:
        dataset: result of ``dataset.state_dict()``.
        iterator: result of ``iter(dataset).state_dict()``.
        fetches: number of batches requested from its iterator in this pass.
        samples: number of samples that its iterator has returned in this pass.
        ended: whether its iterator has ended.
        digest: digest of these samples, if a resume has to read and skip them.
        failed: fetches that have raised, each with its number of samples.
    """
    state = {
        "dataset": dataset,
        "iterator": iterator,
        "fetches": fetches,
        "samples": samples,
        "ended": ended,
        "digest": digest,
    }
    return {**state, "failed": [list(each) for each in failed]} if failed else state


def _thawed(state: bytes | None) -> Any:
    return None if state is None else thaw(state)


def _frozen(worker: dict[str, Any] | None) -> bytes | None:
    return None if worker is None else freeze(worker_state(**worker), "a worker")


def _loaded_worker(worker: dict[str, Any] | None) -> bytes | None:
    return None if worker is None else _loaded("worker", worker_state(**worker))


def _loaded(name: str, state: Any) -> bytes:
    """Return a frozen copy of a value in a state."""
    try:
        return freeze(state, name)
    except LoaderError as error:
        raise StateMismatch(
            f"user's {name}", saved=state, present="what can be copied", remedy=_REMEDY
        ) from error


def _check(
    name: str,
    value: Any,
    fields: dict[str, tuple[type, ...]],
    newer: Collection[str] = (),
) -> None:
    """Check a dictionary's fields; states of earlier versions lack the ``newer`` fields."""
    if not isinstance(value, dict) or set(value) | set(newer) != set(fields):
        keys = sorted(map(str, value)) if isinstance(value, dict) else value
        raise StateMismatch(name, saved=keys, present=f"a dict of {sorted(fields)}", remedy=_REMEDY)
    for field, kinds in fields.items():
        saved = value.get(field)
        is_bool_for_int = isinstance(saved, bool) and int in kinds
        is_no_count = isinstance(saved, int) and not 0 <= saved < _MAX_COUNT
        if not isinstance(saved, kinds) or is_bool_for_int or (is_no_count and int in kinds):
            raise StateMismatch(
                f"{name}'s {field}",
                saved=saved,
                present=" or ".join(kind.__name__ for kind in kinds),
                remedy=_REMEDY,
            )


def _check_failed(name: str, failed: Any) -> None:
    for pair in failed:
        is_pair = isinstance(pair, (list, tuple)) and len(pair) == 2
        if not (is_pair and all(type(count) is int and 0 <= count < _MAX_COUNT for count in pair)):
            raise StateMismatch(
                f"{name}'s failed", saved=pair, present="a pair of counts", remedy=_REMEDY
            )


_REMEDY = "load what StatefulGPULoader.state_dict() returned, unchanged"
