"""The progress of a loader: which epoch a pass takes, where it begins, and what it delivered.

The state speaks of delivered batches. So it is moved by :meth:`Passes.deliver`,
:meth:`Passes.skip` and :meth:`Passes.end` alone, which are called when a batch reaches the user's
loop, has failed there, or was the last one; batches that are made ahead do not move it.
"""

from __future__ import annotations

import copy
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

HISTORY = 16
"""How many batches back ``state_dict(batches_ago=)`` reaches."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the next sample lies: an epoch and a position in its global order."""

    epoch: int
    position: int
    """The position of the oldest sample that was not delivered. With a user's sampler it is the
    number of indices that the sampler has given, over an iterable dataset the number of batches."""
    ahead: tuple[tuple[int, str | None], ...] = field(default=(), repr=False)
    """Positions of the batches that were delivered before an older one (``in_order=False``), each
    with its proof: what a batch there has to have in common with it, or None."""
    index_digest: str | None = field(default=None, repr=False)
    """Digest of the indices before ``position``, which a sampler without state has to skip."""
    user: Any = field(default=None, repr=False)
    """States of the user's own objects, as ``UserStates``."""
    lanes: Mapping[int, Any] | None = field(default=None, repr=False)
    """The cursor of each lane of a sharded dataset; None if all lanes are at their beginning."""


@dataclass(slots=True, eq=False)
class Pass:
    """What one iterator has delivered of one epoch."""

    start: Address
    """Where the pass began."""
    number: int
    """The pass's number among those of the loader, counted from 1 as they begin."""
    generation: int
    """How often ``load_state_dict`` had been called when the pass began."""
    place: Address
    """Where the next sample to deliver lies."""
    resumed: bool
    """Whether the pass goes on from a loaded state."""
    last_delivered: Address | None = None
    """The place after the last delivered batch, if failed batches lie between it and ``place``."""
    delivered: bool = False
    """Whether a batch of the pass has reached the user."""
    is_left: bool = False
    """Whether the pass cannot go on because its iterator is gone, as after a ``break``."""


class Passes:
    """The passes of one loader, in the order in which they deliver.

    A pass takes its epoch when it begins: that of the loaded state, else the one that was asked for
    with :meth:`request_epoch`, else the one after the last epoch of which a batch was delivered. A
    pass that fails before it delivers anything leaves everything as it was.

    >>> passes = Passes()
    >>> first = passes.begin()
    >>> passes.deliver(first, Address(epoch=0, position=8))
    >>> passes.address()
    Address(epoch=0, position=8)
    >>> passes.end(first, Address(epoch=1, position=0))
    >>> passes.address()
    Address(epoch=1, position=0)
    """

    def __init__(self) -> None:
        self._current: Pass | None = None
        self._next = Address(epoch=0, position=0)
        self._loaded = False
        self._requested: int | None = None
        self._history: deque[Address] = deque(maxlen=HISTORY)
        self._begun = 0
        self._last_to_move = 0
        self.generation = 0

    def begin(
        self, *, is_over: Callable[[Address], bool] | None = None, skips_empty_rest: bool = True
    ) -> Pass:
        """Begin a new pass. The state does not change before it delivers or ends.

        Args:
            is_over: tells of a place whether nothing is left of its epoch.
            skips_empty_rest: whether a pass that was loaded at such a place is a pass of the next
                epoch and not an empty one. If :meth:`request_epoch` asked for the next epoch, it is
                anyway.
        """
        start = self._start(is_over, skips_empty_rest)
        if self._loaded and self._requested not in (None, start.epoch):
            warnings.warn(
                f"set_epoch({self._requested}) after load_state_dict() of epoch {start.epoch}: "
                f"the resumed pass stays in epoch {start.epoch}; call set_epoch() after it",
                stacklevel=5,
            )
        self._begun += 1
        return Pass(
            start=start,
            number=self._begun,
            generation=self.generation,
            place=start,
            resumed=self._loaded,
        )

    def deliver(self, current: Pass, place: Address) -> None:
        """Note that a batch of ``current`` reached the user; its next one starts at ``place``."""
        before = current.last_delivered or current.place
        self._take_over(current)
        current.place, current.last_delivered = place, None
        current.delivered = True
        if self._current is current:
            self._history.append(before)

    def skip(self, current: Pass, place: Address) -> None:
        """Note that a batch of ``current`` has failed; its next one starts at ``place``.

        The state after an earlier batch (``batches_ago=``) still lies before the failed one, which
        is tried again if that state is loaded.
        """
        self._take_over(current)
        current.last_delivered = current.last_delivered or current.place
        current.place = place

    def end(self, current: Pass, following: Address) -> None:
        """Note that ``current`` has delivered all; the next pass starts at ``following``."""
        self._take_over(current)
        if self._current is current:
            self._current = None
            self._next = following

    def load(self, address: Address) -> None:
        """Let the next pass, and any begun one that has delivered nothing, start at ``address``."""
        self.generation += 1
        self._current = None
        self._next = address
        self._loaded = True
        self._requested = None
        self._history.clear()

    def note_start(self, current: Pass, place: Address) -> None:
        """Complete the start of a pass that has delivered nothing, now that all of it is known."""
        current.place = place
        if self._current is None and current.generation == self.generation:
            self._next = place

    def go_back(self, current: Pass) -> None:
        """Let the next pass go on where ``current`` had to stop, unless another has done so."""
        took_over = self._current is current
        never_moved = not current.delivered and current.generation == self.generation
        if took_over or (never_moved and current.number > self._last_to_move):
            self.load(current.place)

    def request_epoch(self, epoch: int) -> None:
        """Let the next pass take this epoch, unless it goes on from a loaded state."""
        self._requested = epoch

    def address(self, batches_ago: int = 0) -> Address:
        """Where the stream stands, or stood so many delivered batches ago.

        Raises:
            ValueError: fewer batches were delivered since the loader was built or loaded, or
                more than the last 16 are asked for.
        """
        if batches_ago == 0:
            return self._upcoming() if self._current is None else self._current.place
        if not 0 < batches_ago <= len(self._history):
            raise ValueError(
                f"{batches_ago = } is out of reach: {len(self._history)} of the last {HISTORY} "
                "batches are remembered since the loader was built or loaded"
            )
        return self._history[-batches_ago]

    def present(
        self, *, is_over: Callable[[Address], bool] | None = None, skips_empty_rest: bool = True
    ) -> Address:
        """Where the pass under way stands, or, between two passes, where the next one begins.

        Unlike :meth:`address`, it does not count a pass whose iterator is gone. The arguments are
        those of :meth:`begin`.
        """
        under_way = self._under_way
        return self._start(is_over, skips_empty_rest) if under_way is None else under_way.place

    @property
    def is_under_way(self) -> bool:
        """Whether some iterator has delivered a batch of a pass and may go on with it."""
        return self._under_way is not None

    def twin(self) -> Passes:
        """The passes of a copy of the loader, whose next pass begins with this one's next batch.

        It goes on from the pass under way or, if there is none, is the next pass.
        """
        twin = copy.copy(self)
        twin._history = deque(maxlen=HISTORY)
        if self._under_way is not None:
            twin.load(self._under_way.place)
        return twin

    @property
    def _under_way(self) -> Pass | None:
        return None if self._current is None or self._current.is_left else self._current

    def _start(self, is_over: Callable[[Address], bool] | None, skips_empty_rest: bool) -> Address:
        start = self._upcoming()
        skips_empty_rest = skips_empty_rest or self._requested == start.epoch + 1
        is_rest = self._loaded and start.position > 0
        if is_rest and is_over is not None and skips_empty_rest and is_over(start):
            return Address(start.epoch + 1, 0)
        return start

    def _upcoming(self) -> Address:
        if self._current is not None:
            following = Address(self._current.start.epoch + 1, 0)
        else:
            following = self._next
        if self._requested is None or self._loaded:
            return following
        return Address(self._requested, 0, user=following.user)

    def _take_over(self, current: Pass) -> None:
        """Let the state speak of ``current``, unless a later pass or a load came after it."""
        if current.generation != self.generation or current.number <= self._last_to_move:
            return
        self._last_to_move = current.number
        self._current = current
        self._loaded = False
        self._requested = None
