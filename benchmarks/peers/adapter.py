"""Interface between the benchmark of peers and each loader."""

from __future__ import annotations

import json
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEED = 42


@dataclass(frozen=True, kw_only=True)
class Work:
    """Task of a pass: deliver samples 0 to ``num_samples`` - 1, shuffled, in batches."""

    num_samples: int
    batch_size: int
    num_workers: int
    """Number of processes or threads."""
    folder: Path
    """Folder of these samples, for a loader with its own format."""
    photographs: tuple[str, ...] = ()
    """JPEG files; sample number i is ``photographs[i % len(photographs)]``."""

    @property
    def files(self) -> list[str]:
        times = -(-self.num_samples // len(self.photographs))
        return list(self.photographs * times)[: self.num_samples]

    @property
    def numbers(self) -> list[int]:
        """Label of every sample: its own number, which identifies it."""
        return list(range(self.num_samples))


@dataclass(frozen=True)
class Delivery:
    """A pass that has begun."""

    batches: Iterator[Any]
    """Photographs: pairs of float32 [batch_size, 3, 224, 224] and int64 [batch_size], the numbers
    of the samples. Numbers: int64 [batch_size]."""
    state: Callable[[], bytes]
    """Returns the state after the last batch taken, as it would be written to a file."""


class Peer(ABC):
    def build_photographs(self, work: Work) -> None:  # noqa: B027
        """Write the photographs in the loader's own format, if it has one."""

    def build_numbers(self, work: Work) -> None:  # noqa: B027
        """Write the numbers in the loader's own format, if it has one."""

    @abstractmethod
    def photographs(self, work: Work, state: bytes | None) -> Delivery:
        """Begin or resume a pass over the photographs."""

    @abstractmethod
    def numbers(self, work: Work, state: bytes | None) -> Delivery:
        """Begin or resume a pass over samples that are only numbers."""

    @abstractmethod
    def moved(self, state: bytes, work: Work, batches: int) -> bytes:
        """Return a state of numbers advanced by ``batches``, without reading them.

        ``batches`` and the place of ``state`` are multiples of the number of workers. Called only
        if the entry has ``can_be_moved``.
        """


def to_bytes(state: Any) -> bytes:
    """Serialize a state as JSON if that is lossless, otherwise with pickle.

    >>> to_bytes({"epoch": 0})
    b'{"epoch": 0}'
    """
    try:
        text = json.dumps(state)
        if json.loads(text) == state:
            return text.encode()
    except (TypeError, ValueError):
        pass
    return pickle.dumps(state)


def from_bytes(data: bytes) -> Any:
    """Read back :func:`to_bytes`.

    >>> from_bytes(to_bytes({"epoch": 0})), from_bytes(to_bytes({0: b"bytes"}))
    ({'epoch': 0}, {0: b'bytes'})
    """
    return pickle.loads(data) if data.startswith(pickle.PROTO) else json.loads(data)


def loaded(loader: Any, state: bytes | None) -> Delivery:
    """Begin a pass of a loader with ``state_dict`` and ``load_state_dict``."""
    if state is not None:
        loader.load_state_dict(from_bytes(state))
    return Delivery(iter(loader), lambda: to_bytes(loader.state_dict()))


def replayed(batches: Iterator[Any], state: bytes | None) -> Delivery:
    """Begin a pass of a loader without a state: the seen batches are read again.

    >>> delivery = replayed(iter("abcde"), None)
    >>> next(delivery.batches), next(delivery.batches), delivery.state()
    ('a', 'b', b'2')
    >>> next(replayed(iter("abcde"), b"2").batches)
    'c'
    """
    seen = 0

    def counted() -> Iterator[Any]:
        nonlocal seen
        for batch in batches:
            seen += 1
            yield batch

    again = counted()
    for _ in range(int(state or 0)):
        next(again)
    return Delivery(again, lambda: state_of_seen(seen))


def state_of_seen(batches: int) -> bytes:
    """Return the state from which :func:`replayed` resumes after ``batches`` batches."""
    return str(batches).encode()


class Replaying(Peer):
    """A loader without a state."""

    def moved(self, state: bytes, work: Work, batches: int) -> bytes:
        return state_of_seen(int(state) + batches)
