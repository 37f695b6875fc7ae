"""BoundedCache: the values used last, each made once however many threads ask for it."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class BoundedCache(Generic[T]):
    """The values used last, as many as fit into a number of bytes, but at least one.

    A forked child and a pickled copy begin with none. While a value is made, threads that ask for
    the same one wait, and others do not; if making it fails, each of them tries for itself.

    Args:
        limit: bytes.
        size_of: bytes that a value takes.
        on_drop: called with a value that was dropped for want of room, and how often it was got.

    >>> cache = BoundedCache(10, len)
    >>> [cache.get(key, lambda: "x" * 6) for key in (1, 2, 2)]
    ['xxxxxx', 'xxxxxx', 'xxxxxx']
    >>> cache.keys()
    [2]
    """

    def __init__(
        self,
        limit: int,
        size_of: Callable[[T], int],
        on_drop: Callable[[T, int], None] | None = None,
    ) -> None:
        self._limit = limit
        self._size_of = size_of
        self._on_drop = on_drop
        self._here: _Held[T] = _Held()

    def get(self, key: int, make: Callable[[], T]) -> T:
        """The value of a key; made, if it is not held."""
        here = self._held()
        while True:
            with here.lock:
                slot = here.slots.get(key)
                if slot is None:
                    mine = here.slots[key] = _Slot[T]()
                    break
                here.slots.move_to_end(key)
                slot.uses += 1
            slot.done.wait()
            if slot.made:
                return slot.made[0]
        try:
            value = make()
        except BaseException:
            with here.lock:
                del here.slots[key]
            raise
        else:
            with here.lock:
                mine.made, mine.size = (value,), self._size_of(value)
                here.size += mine.size
                dropped = self._drop_oldest(here, key)
        finally:
            mine.done.set()
        if self._on_drop is not None:
            for old in dropped:
                self._on_drop(old.made[0], old.uses)
        return value

    def keys(self) -> list[int]:
        """The keys of the values held, the one used last at the end."""
        return list(self._held().slots)

    def drop(self, key: int) -> None:
        """Forget the value of a key; code that is using it is not affected."""
        here = self._held()
        with here.lock:
            slot = here.slots.get(key)
            if slot is not None and slot.made:
                here.size -= here.slots.pop(key).size

    def _drop_oldest(self, here: _Held[T], newest: int) -> list[_Slot[T]]:
        dropped: list[_Slot[T]] = []
        for key in [key for key in here.slots if key != newest]:
            if here.size <= self._limit:
                break
            if here.slots[key].made:
                dropped.append(here.slots.pop(key))
                here.size -= dropped[-1].size
        return dropped

    def _held(self) -> _Held[T]:
        here = self._here
        if here.owner != os.getpid():
            # No lock here: a thread of the parent may have held it at the fork, for ever.
            here = self._here = _Held()
        return here

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundedCache, (self._limit, self._size_of, self._on_drop)


class _Slot(Generic[T]):
    """The place of one value, which may not be made yet."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.made: tuple[T, ...] = ()
        """The value, once it is there."""
        self.size = 0
        self.uses = 1
        """How often the value was got, the first time included."""


class _Held(Generic[T]):
    """What one process holds."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.lock = threading.Lock()
        self.slots: OrderedDict[int, _Slot[T]] = OrderedDict()
        self.size = 0
