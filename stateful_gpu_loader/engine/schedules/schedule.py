"""Schedule: the interface of a pass, with its requests and its position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from stateful_gpu_loader.engine.pipeline import Answer
from stateful_gpu_loader.records import WorkerStart
from stateful_gpu_loader.state.epoch_progress import Address


class Arrival(NamedTuple):
    """What is known of a batch that has been made, before it is delivered."""

    position: int
    """Position that keys random numbers for the batch as a whole."""
    request: Any
    """Its request, in a form that does not depend on earlier ones."""


class Schedule(Protocol):
    """One pass, in the main process; holds the position, which counts delivered batches only."""

    @property
    def is_torn(self) -> bool:
        """Whether an exception came while a request was drawn, so that one may be missing."""
        ...

    def requests(self) -> Iterator[Any]:
        """Return the requests after the last delivered batch, oldest first.

        It is called at the start, and again when workers were lost.
        """
        ...

    def starts(self) -> Sequence[WorkerStart] | None:
        """Return what each worker begins with before its first request; None without states."""
        ...

    def arrive(self, request: Any, answer: Answer | None) -> Arrival | None:
        """Return what is known of a batch before its delivery.

        None means that the batch was delivered before, and was made again only to advance the
        user's objects. It must be passed to :meth:`deliver` like any other.
        """
        ...

    def deliver(self, request: Any, answer: Answer | None) -> Address:
        """Return the position after a batch that is being delivered, or after an iterator's end."""
        ...

    def fail(self, request: Any, answer: Answer | None) -> Address | None:
        """Return the position after a failed request; None leaves the position as it was."""
        ...

    def end(self) -> Address:
        """Return where the next pass begins, once all requests were delivered."""
        ...
