"""Window: the requests of one pass that are in flight, for any kind of worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stateful_gpu_loader.engine.workers.remote_failure import without_frames


class Window:
    """Keeps track of issued and answered requests, and of the next one to deliver.

    Each request has a number that the transport gives it. An exception of the requests is kept
    until all requests issued before it are delivered.

    Args:
        requests: iterator that is asked for another request whenever there is room.
        limit: largest number of requests that are issued and not delivered.
        in_order: deliver in the order of the requests, otherwise in that of the answers.

    >>> window = Window(iter("abc"), limit=2, in_order=True)
    >>> for number in (0, 1):
    ...     window.issue(number, window.draw())
    >>> window.draw() is None  # there is no room
    True
    >>> window.answer(1, "B")
    >>> window.is_ready()
    False
    >>> window.answer(0, "A")
    >>> window.is_ready()
    True
    >>> window.deliver()
    ('a', 'A')
    """

    def __init__(self, requests: Iterator[Any], *, limit: int, in_order: bool) -> None:
        self._requests = requests
        self._limit = limit
        self._in_order = in_order
        self._issued: dict[int, Any] = {}
        """Requests that were not delivered, oldest first."""
        self._answers: dict[int, Any] = {}
        """Answers to issued requests, oldest first."""
        self._failure: Exception | None = None
        self.is_exhausted = False
        """Whether there are no more requests."""

    def __len__(self) -> int:
        """Return the number of requests that are issued and not delivered."""
        return len(self._issued)

    @property
    def num_under_way(self) -> int:
        """Number of requests without an answer."""
        return len(self._issued) - len(self._answers)

    def depth(self) -> tuple[int, int]:
        """Return the numbers of requests without an answer, and of answers to be delivered."""
        return self.num_under_way, len(self._answers)

    @property
    def oldest(self) -> Any:
        """The oldest request without an answer; None if there is none."""
        waiting = (one for number, one in self._issued.items() if number not in self._answers)
        return next(waiting, None)

    def draw(self, *, spare: int = 0) -> Any:
        """Return the next request, to be issued; None if there is no room or no request.

        It is called in the user's own thread, as a user's sampler may draw from the global
        generators.

        Args:
            spare: number of places that are about to be free.
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
        """Note that a drawn request is given to a worker."""
        self._issued[number] = request

    def answer(self, number: int, answer: Any) -> None:
        """Take the answer to an issued request."""
        self._answers[number] = answer

    def is_ready(self) -> bool:
        """Whether an answer can be delivered."""
        return self._turn() in self._answers

    @property
    def is_over(self) -> bool:
        """Whether nothing is in flight and nothing will come; :meth:`end` raises the reason."""
        return not self._issued and (self.is_exhausted or self._failure is not None)

    def deliver(self) -> tuple[Any, Any]:
        """Return the next request to deliver and its answer."""
        number = self._turn()
        return self._issued.pop(number), self._answers.pop(number)

    def end(self) -> None:
        """Raise the reason why no request is left.

        Raises:
            StopIteration: the requests are exhausted.
            Exception: an exception of the requests; they will be asked again.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self.is_exhausted:
            raise StopIteration

    def clear(self) -> None:
        """Forget all requests in flight, and draw no more."""
        self.is_exhausted = True
        self._issued.clear()
        self._answers.clear()

    def _turn(self) -> int:
        return next(iter(self._issued if self._in_order else self._answers), -1)
