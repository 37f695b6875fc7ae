"""What the benchmark of peers asks of a loader, whoever wrote it."""

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
    """What a pass is asked to deliver: samples 0 to ``num_samples`` - 1, shuffled, in batches."""

    num_samples: int
    batch_size: int
    num_workers: int
    """Processes, or threads."""
    folder: Path
    """Where a loader with a format of its own keeps these samples."""
    photographs: tuple[str, ...] = ()
    """JPEG files; sample number i is ``photographs[i % len(photographs)]``."""

    @property
    def files(self) -> list[str]:
        """The file of every sample."""
        times = -(-self.num_samples // len(self.photographs))
        return list(self.photographs * times)[: self.num_samples]

    @property
    def numbers(self) -> list[int]:
        """The label of every sample: its own number, by which it is known again."""
        return list(range(self.num_samples))


@dataclass(frozen=True)
class Delivery:
    """A pass that has begun."""

    batches: Iterator[Any]
    """Of photographs: the pair of float32 [batch_size, 3, 224, 224] and int64 [batch_size], the
    numbers of the samples. Of numbers: int64 [batch_size]."""
    state: Callable[[], bytes]
    """The state behind the last batch that was taken, as it would be written to a file."""


class Peer(ABC):
    """A loader."""

    def build_photographs(self, work: Work) -> None:  # noqa: B027
        """Write the photographs in the loader's own format, if it has one."""

    def build_numbers(self, work: Work) -> None:  # noqa: B027
        """Write the numbers in the loader's own format, if it has one."""

    @abstractmethod
    def photographs(self, work: Work, state: bytes | None) -> Delivery:
        """Begin a pass over the photographs, or go on with one."""

    @abstractmethod
    def numbers(self, work: Work, state: bytes | None) -> Delivery:
        """Begin a pass over samples that are their numbers alone, or go on with one."""

    @abstractmethod
    def moved(self, state: bytes, work: Work, batches: int) -> bytes:
        """A state of numbers as it would be so many batches later, without reading them.

        ``batches`` is a multiple of the number of workers, and so is the place of ``state``. Only
        asked of those whose entry says ``can_be_moved``.
        """


def to_bytes(state: Any) -> bytes:
    """As JSON where that brings it back, otherwise pickled.

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
    """What :func:`to_bytes` was given.

    >>> from_bytes(to_bytes({"epoch": 0})), from_bytes(to_bytes({0: b"bytes"}))
    ({'epoch': 0}, {0: b'bytes'})
    """
    return pickle.loads(data) if data.startswith(pickle.PROTO) else json.loads(data)


def loaded(loader: Any, state: bytes | None) -> Delivery:
    """A pass of a loader that has ``state_dict`` and ``load_state_dict``."""
    if state is not None:
        loader.load_state_dict(from_bytes(state))
    return Delivery(iter(loader), lambda: to_bytes(loader.state_dict()))


def replayed(batches: Iterator[Any], state: bytes | None) -> Delivery:
    """A pass of a loader without a state: the batches that were seen are read once more.

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
    """What :func:`replayed` goes on from, once so many batches were seen."""
    return str(batches).encode()


class Replaying(Peer):
    """A loader without a state."""

    def moved(self, state: bytes, work: Work, batches: int) -> bytes:
        return state_of_seen(int(state) + batches)
