"""The states of the user's own objects at a place in a pass; ``user`` in a loader's state.

They are frozen: bytes, which do not change when the objects go on. A worker sends these bytes to
the main process, which keeps them unread until the loader's state is asked for, and then makes a
fresh object of them at every call. The bytes are not a file format, as they never leave the
processes of one job.
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
        state: what a user's object returned.
        owner: the object whose state it is, for the error.

    Raises:
        LoaderError: it cannot be pickled.

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
    """A fresh copy of the state."""
    return pickle.loads(frozen)


def _plain_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Pickle a tensor by its bytes, in a third of the time that torch's own file format takes."""
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
_MOST = 1 << 62
"""More than anything that is counted: what is added to a count must stay an int of 64 bits."""
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
    """The states of a user's sampler, dataset and iterators, from which a pass goes on.

    >>> states = UserStates(num_workers=0, workers=(freeze(worker_state(dataset={"i": 3}), ""),))
    >>> UserStates.from_dict(states.to_dict()).to_dict()["workers"][0]["dataset"]
    {'i': 3}
    """

    sampler: bytes | None = None
    """The sampler's state, frozen; None where the sampler begins as it was built."""
    permutation: str | None = None
    """The generator that orders this epoch as torchdata would have done, as text."""
    num_workers: int | None = None
    """The loader's number of workers, if the workers have state."""
    workers: tuple[bytes | None, ...] | None = None
    """The frozen :func:`worker_state` of each worker; None for one that begins anew."""
    next_worker: int = 0
    """The worker that makes the next batch at ``base``."""
    base: int = 0
    """Position at which all these states were taken."""
    steps: int = 0
    """Batches delivered since ``base``. A resumed pass makes them again, but does not deliver them
    again."""
    batches: int | None = None
    """Batches of a user's batch sampler before ``base``, which positions do not tell. None in all
    other states, and in those saved before this was counted."""
    pending: frozenset[int] = frozenset()
    """Workers that still have to load their state, in this process; not saved."""

    @property
    def is_as_built(self) -> bool:
        """Whether there are no states: the objects begin as they were built."""
        return self.batches is None and not (
            self.sampler or self.permutation or self.workers or self.next_worker or self.steps
        )

    def to_dict(self) -> dict[str, Any]:
        """A fresh dictionary, plain but for what the user's objects put in."""
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
        """The same states without the digests that prove that samples are read again unchanged."""
        workers = [None if worker is None else thaw(worker) for worker in self.workers or ()]
        unproven = tuple(
            None if worker is None else _frozen({**worker, "digest": None}) for worker in workers
        )
        return replace(self, workers=None if self.workers is None else unproven)

    @classmethod
    def from_dict(cls, user: Any) -> UserStates:
        """Check and copy what :meth:`to_dict` returned.

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
    """The state of one worker.

    Args:
        dataset: what ``dataset.state_dict()`` returned.
        iterator: what ``iter(dataset).state_dict()`` returned.
        fetches: batches that its iterator was asked for in this pass.
        samples: samples that its iterator has given in this pass.
        ended: whether its iterator has ended.
        digest: of those samples, if a resumed iterator has to read them again to skip them.
        failed: fetches that have raised, each with the number of samples that it had taken.
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
    """A frozen copy of what a state holds, which may be no copyable value."""
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
    """``newer`` fields are not in states of earlier versions."""
    if not isinstance(value, dict) or set(value) | set(newer) != set(fields):
        keys = sorted(map(str, value)) if isinstance(value, dict) else value
        raise StateMismatch(name, saved=keys, present=f"a dict of {sorted(fields)}", remedy=_REMEDY)
    for field, kinds in fields.items():
        found = value.get(field)
        is_bool_for_int = isinstance(found, bool) and int in kinds
        is_no_count = isinstance(found, int) and not 0 <= found < _MOST
        if not isinstance(found, kinds) or is_bool_for_int or (is_no_count and int in kinds):
            raise StateMismatch(
                f"{name}'s {field}",
                saved=found,
                present=" or ".join(kind.__name__ for kind in kinds),
                remedy=_REMEDY,
            )


def _check_failed(name: str, failed: Any) -> None:
    for each in failed:
        is_pair = isinstance(each, (list, tuple)) and len(each) == 2
        if not (is_pair and all(type(count) is int and 0 <= count < _MOST for count in each)):
            raise StateMismatch(
                f"{name}'s failed", saved=each, present="a pair of counts", remedy=_REMEDY
            )


_REMEDY = "load what StatefulGPULoader.state_dict() returned, unchanged"
