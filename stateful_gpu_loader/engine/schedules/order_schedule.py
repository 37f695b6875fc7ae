"""OrderSchedule: a pass in the loader's own order, whose position is all of its state."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stateful_gpu_loader.engine.pipeline import Answer
from stateful_gpu_loader.engine.schedules.positions import PositionFeed
from stateful_gpu_loader.engine.schedules.schedule import Arrival
from stateful_gpu_loader.records import Request
from stateful_gpu_loader.state.epoch_progress import Address


class OrderSchedule:
    """The requests of one pass, delivered in their order.

    Requests that were issued and not delivered are not kept: they are drawn again from the position
    behind the last one that was delivered or has failed.

    Args:
        place: where the pass begins.
        feed: returns the requests from a place on.
    """

    is_torn = False

    def __init__(self, place: Address, feed: Callable[[Address], PositionFeed]) -> None:
        self._start = self._next = place
        self._feed = feed

    def requests(self) -> Iterator[Request]:
        return iter(self._feed(self._next).take, None)

    def start_place(self) -> Address:
        return self._start

    def starts(self) -> None:
        return None

    def arrive(self, request: Request, answer: Answer | None) -> Arrival:
        return Arrival(request.start, request)

    def deliver(self, request: Request, answer: Answer | None) -> Address:
        ended_at = None if answer is None else answer.ended_at
        self._next = Address(request.epoch, request.end if ended_at is None else ended_at)
        return self._next

    def fail(self, request: Request, answer: Answer | None) -> None:
        """Pass over the batch; a state before a later delivery tries it again."""
        self._next = Address(request.epoch, request.end)

    def end(self) -> Address:
        return Address(self._start.epoch + 1, 0)
