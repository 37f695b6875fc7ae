"""A pass in the loader's own order: the requests from a position to the end of the epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from stateful_gpu_loader.engine.pipeline import Answer
from stateful_gpu_loader.engine.schedules.schedule import Arrival
from stateful_gpu_loader.records import IndexArray, Request
from stateful_gpu_loader.samplers.orders import EpochOrder, key_offset_of
from stateful_gpu_loader.state.epoch_progress import Address

_MAX_BLOCK = 1 << 14
"""Maximum number of indices in a block. Page faults of larger arrays cost as much as permuting."""


@dataclass(frozen=True, kw_only=True)
class Division:
    """Division of an epoch into steps, and of each step among ranks."""

    batch_size: int
    """Number of one rank's samples in one step."""
    drop_last: bool
    """Whether a step that not all ranks can fill is dropped."""
    rank: int = 0
    num_replicas: int = 1

    @property
    def rank_name(self) -> str | None:
        """Rank and number of ranks as text; None for a single rank."""
        return f"rank {self.rank} of {self.num_replicas}" if self.num_replicas > 1 else None

    @property
    def global_batch_size(self) -> int:
        return self.batch_size * self.num_replicas

    def num_steps(self, num_positions: int) -> int:
        """Return the number of steps over ``num_positions`` positions.

        >>> Division(batch_size=4, drop_last=False, num_replicas=2).num_steps(17)
        3
        """
        whole, rest = divmod(num_positions, self.global_batch_size)
        return whole + (1 if rest and not self.drop_last else 0)


class PositionFeed:
    """Draws one rank's requests from a position to the end of its epoch.

    In each step the ranks together take the next ``global_batch_size`` positions. Rank r of R takes
    the offsets r, r + R, ..., so the global batch depends only on its size. The last step wraps
    around to the epoch's start, as DistributedSampler pads. After the last step the position is the
    epoch's end, even if a tail was dropped.
    """

    def __init__(
        self, address: Address, *, seed: int, indices: EpochOrder, division: Division
    ) -> None:
        self._seed, self._epoch = seed, address.epoch
        self._indices = indices
        self._key_offset = key_offset_of(indices)
        self._division = division
        self._global_batch_size = division.global_batch_size
        self.position = address.position if address.user is None else address.user.base
        self._ordinal = 0
        self._num_steps = division.num_steps(indices.n - self.position)
        self._block: IndexArray = np.empty(0, dtype=np.int64)
        self._next_block_size = 0

    has_state = is_lost = False
    batches: int | None = None

    def mark(self) -> bytes:
        raise TypeError("a feed of positions has no other state")

    def start_mark(self) -> None:
        return None

    def count(self, request: Request) -> None:
        return None

    def proof_of(self, request: Request) -> str | None:
        return self._division.rank_name

    def end_mark(self) -> None:
        return None

    def draw(self) -> Request | None:
        if self._ordinal == self._num_steps:
            return None
        division, n = self._division, self._indices.n
        is_last = self._ordinal == self._num_steps - 1
        count = min(division.batch_size, -(-(n - self.position) // division.num_replicas))
        if len(self._block) < count:
            self._look_up(count)
        return Request(
            ordinal=self._ordinal,
            seed=self._seed,
            epoch=self._epoch,
            start=self._key_offset + self.position + division.rank,
            step=division.num_replicas,
            indices=self._block[:count],
            end=n if is_last else self.position + self._global_batch_size,
        )

    def advance(self, request: Request) -> None:
        self._block = self._block[len(request.indices) :]
        self._ordinal += 1
        self.position = request.end

    def take(self) -> Request | None:
        """Return the next request and move to the one after it; None at the end."""
        request = self.draw()
        if request is not None:
            self.advance(request)
        return request

    def _look_up(self, count: int) -> None:
        """Look up indices in growing blocks."""
        stride = self._division.num_replicas
        left = -(-(self._indices.n - self.position) // stride) - len(self._block)
        size = max(count, min(self._next_block_size, _MAX_BLOCK, left))
        first = self.position + self._division.rank + stride * len(self._block)
        positions = first + stride * np.arange(size, dtype=np.int64)
        positions %= self._indices.n
        self._block = np.concatenate([self._block, self._indices(positions)])
        self._next_block_size = 4 * size


class OrderSchedule:
    """A pass in the loader's own order, delivered in this order; its position is its whole state.

    Issued requests are drawn again from the position.

    Args:
        place: where the pass begins.
        feed: returns the requests from a position on.
    """

    is_interrupted = False

    def __init__(self, place: Address, feed: Callable[[Address], PositionFeed]) -> None:
        self._start = self._next = place
        self._feed = feed

    def requests(self) -> Iterator[Request]:
        return iter(self._feed(self._next).take, None)

    def starts(self) -> None:
        return None

    def arrive(self, request: Request, answer: Answer | None) -> Arrival:
        return Arrival(request.start, request)

    def deliver(self, request: Request, answer: Answer | None) -> Address:
        ended_at = None if answer is None else answer.ended_at
        self._next = Address(request.epoch, request.end if ended_at is None else ended_at)
        return self._next

    def fail(self, request: Request, answer: Answer | None) -> None:
        """Skip the batch; a state before the next delivery tries it again."""
        self._next = Address(request.epoch, request.end)

    def end(self) -> Address:
        return Address(self._start.epoch + 1, 0)
