"""Schedule: the interface of a pass, with its requests and its position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from stateful_gpu_loader.engine.pipeline import Answer
from stateful_gpu_loader.records import WorkerStart
from stateful_gpu_loader.state.epoch_progress import Address


class Arrival(NamedTuple):
    """Position and request of a finished batch, before it is delivered."""

    position: int
    """Position that keys random numbers for the batch as a whole."""
    request: Any
    """Its request, independent of earlier requests."""


class Schedule(Protocol):
    """One pass, in the main process; its position counts only delivered batches."""

    @property
    def is_interrupted(self) -> bool:
        """Whether an exception interrupted the drawing of a request."""
        ...

    def requests(self) -> Iterator[Any]:
        """Return the requests after the last delivered batch, oldest first.

        It is called at the start, and again after a loss of workers.
        """
        ...

    def starts(self) -> Sequence[WorkerStart] | None:
        """Return each worker's start, before its first request; None without states."""
        ...

    def arrive(self, request: Any, answer: Answer | None) -> Arrival | None:
        """Return the position and request of a batch before its delivery.

        None means that the batch was delivered before, and made again only to advance the user's
        objects. It must be passed to :meth:`deliver`, too.
        """
        ...

    def deliver(self, request: Any, answer: Answer | None) -> Address:
        """Return the position after a batch that is being delivered, or after an iterator's end."""
        ...

    def fail(self, request: Any, answer: Answer | None) -> Address | None:
        """Return the position after a failed request; None if the position stays."""
        ...

    def end(self) -> Address:
        """Return where the next pass begins, after all requests were delivered."""
        ...
