"""Schedule: the interface of a pass, with its requests and its position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from stateful_gpu_loader.engine.pipeline import Answer
from stateful_gpu_loader.records import WorkerStart
from stateful_gpu_loader.state.epoch_progress import Address


class Schedule(Protocol):
    """One pass, in the main process; holds the position, which counts delivered batches only."""

    has_met_end: bool
    """Whether a delivered or failed request was found to end the epoch; later ones do not count."""

    def requests(self) -> Iterator[Any]:
        """Return the requests after the last delivered batch, oldest first.

        It is called at the start, and again when workers were lost.
        """
        ...

    def start_place(self) -> Address:
        """Return the position where the pass began, with the user objects' states at that time."""
        ...

    def starts(self) -> Sequence[WorkerStart] | None:
        """Return what each worker begins with before its first request; None without states."""
        ...

    def key_position(self, request: Any, answer: Answer | None) -> int:
        """Return the position that keys random numbers for a whole batch, before its delivery."""
        ...

    def is_replay(self, request: Any) -> bool:
        """Whether the request was delivered before, and only advances the user's objects again."""
        ...

    def by_itself(self, request: Any) -> Any:
        """Return the oldest undelivered request in a form that does not depend on earlier ones."""
        ...

    def deliver(self, request: Any, answer: Answer | None) -> Address:
        """Return the position after a batch that is being delivered, or after an iterator's end."""
        ...

    def fail(self, request: Any, answer: Answer | None) -> Address | None:
        """Return the position after a failed request; None leaves the position before it."""
        ...

    def end(self) -> Address:
        """Return where the next pass begins, once all requests were delivered."""
        ...
