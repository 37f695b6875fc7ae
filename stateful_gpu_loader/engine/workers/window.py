"""Window: the requests of one pass that are under way, whoever executes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stateful_gpu_loader.engine.workers.remote_failure import without_frames


class Window:
    """Which requests are issued, which are answered, and whose turn it is to be delivered.

    Each request goes by a number of its transport's. An exception of the requests waits until all
    that was issued before is delivered.

    Args:
        requests: asked for one more whenever there is room.
        limit: requests that are issued and not delivered, at most.
        in_order: deliver in the order of the requests, or else of the answers.

    >>> window = Window(iter("abc"), limit=2, in_order=True)
    >>> for number in (0, 1):
    ...     window.issue(number, window.draw())
    >>> window.draw() is None  # there is no room
    True
    >>> window.answer(1, "B"), window.is_ready(), window.answer(0, "A"), window.is_ready()
    (True, False, True, True)
    >>> window.deliver()
    ('a', 'A')
    """

    def __init__(self, requests: Iterator[Any], *, limit: int, in_order: bool) -> None:
        self._requests = requests
        self._limit = limit
        self._in_order = in_order
        self._issued: dict[int, Any] = {}
        """Those that were not delivered, the oldest first."""
        self._answers: dict[int, Any] = {}
        """Of the issued ones, the oldest answer first."""
        self._failure: Exception | None = None
        self.is_exhausted = False
        """Whether there are no more requests."""

    def __len__(self) -> int:
        """Requests that are issued and not delivered."""
        return len(self._issued)

    @property
    def num_under_way(self) -> int:
        """How many requests have no answer."""
        return len(self._issued) - len(self._answers)

    @property
    def oldest(self) -> Any:
        """The oldest request without an answer; None if there is none."""
        waiting = (one for number, one in self._issued.items() if number not in self._answers)
        return next(waiting, None)

    def draw(self, *, spare: int = 0) -> Any:
        """The next request, to be issued; None if there is no room, or no request.

        In the user's own thread: a sampler of the user's draws from the global generators here.

        Args:
            spare: places that are about to be free.
        """
        no_room = len(self._issued) - spare >= self._limit
        if no_room or self.is_exhausted or self._failure is not None:
            return None
        try:
            return next(self._requests)
        except StopIteration:
            self.is_exhausted = True
        except Exception as error:
            self._failure = without_frames(error)
        return None

    def issue(self, number: int, request: Any) -> None:
        """A drawn request goes to whoever executes it."""
        self._issued[number] = request

    def answer(self, number: int, answer: Any) -> bool:
        """An answer has come; False drops that of a request that is not waited for any more."""
        if number not in self._issued:
            return False
        self._answers[number] = answer
        return True

    def is_ready(self) -> bool:
        """Whether an answer can be delivered."""
        return self._turn() in self._answers

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to wait for: :meth:`end` says why."""
        return not self._issued and (self.is_exhausted or self._failure is not None)

    def deliver(self) -> tuple[Any, Any]:
        """The request and the answer whose turn it is."""
        number = self._turn()
        return self._issued.pop(number), self._answers.pop(number)

    def end(self) -> None:
        """Say why nothing is under way, and no request is left.

        Raises:
            StopIteration: they are exhausted.
            Exception: theirs; they will be asked again.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self.is_exhausted:
            raise StopIteration

    def clear(self) -> None:
        """Forget all that is under way; nothing more is drawn."""
        self.is_exhausted = True
        self._issued.clear()
        self._answers.clear()

    def _turn(self) -> int:
        return next(iter(self._issued if self._in_order else self._answers), -1)
