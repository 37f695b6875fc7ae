"""The contract of a stream: which requests a pass is made of, and where it stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from stateful_gpu_loader.engine.pipeline import Answer
from stateful_gpu_loader.records import WorkerStart
from stateful_gpu_loader.state.epoch_progress import Address


class Schedule(Protocol):
    """One pass, in the main process; owns the state: of what was delivered."""

    has_met_end: bool
    """Whether the epoch was found to end at a request that was delivered or has failed, whatever
    was asked for behind it."""

    def requests(self) -> Iterator[Any]:
        """All requests behind the last delivered place, from the oldest: called at the start, and
        again when the workers were lost."""
        ...

    def start_place(self) -> Address:
        """Where the pass began, with the states that the user's objects had then."""
        ...

    def starts(self) -> Sequence[WorkerStart] | None:
        """What the workers are told before the first of those requests; None where they have no
        state."""
        ...

    def key_position(self, request: Any, answer: Answer | None) -> int:
        """The key of what is drawn for a whole batch, before it is delivered."""
        ...

    def is_replay(self, request: Any) -> bool:
        """Whether this request was delivered before, and is made again for its effects alone."""
        ...

    def by_itself(self, request: Any) -> Any:
        """The oldest request that was not delivered, as one that needs none before it."""
        ...

    def deliver(self, request: Any, answer: Answer | None) -> Address:
        """The place behind a batch that is being handed over, or behind an iterator's end."""
        ...

    def fail(self, request: Any, answer: Answer | None) -> Address | None:
        """The place behind a request whose exception is being raised; None leaves it before it."""
        ...

    def end(self) -> Address:
        """Where the next pass begins, once all requests were delivered."""
        ...
