"""Segments: shared memory that worker processes fill with batches, again and again.

New shared memory for each batch would cost page faults: 0.4 ms for an image of 224x224 in float32,
a third of the time to decode it.

A worker makes a segment when none of its own is free, and sends the descriptor with the segment's
first batch. The main process maps the segment once and lends it to the batch. After the batch is
gone, the next request returns the segment, and the worker may fill it again. Segments have no
names, so they end with the last process that maps them.
"""

from __future__ import annotations

import math
import os
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch

from stateful_gpu_loader.engine.makers.memory import lend
from stateful_gpu_loader.engine.workers.channel import OpenFile

MAX_COPY = 1 << 18
"""Size limit in bytes of memory that is copied into the message."""

_DESCRIPTORS = Path("/proc/self/fd")


class SegmentId(NamedTuple):
    """Identifies a segment among those of all workers; no id is used twice."""

    worker: int
    number: int


class SentSegment(NamedTuple):
    """A segment on its way to the main process."""

    id: SegmentId
    size: int
    """Size in bytes."""
    num_bytes: int
    """Number of bytes used by the batch, from the beginning."""
    descriptor: Any
    """Pickled form of its file descriptor, the first time; None after that."""


class Returned(NamedTuple):
    """A segment that the main process no longer refers to."""

    number: int
    may_be_filled: bool
    """False if a fork of the main process may still refer to the segment."""


class WorkerSegments:
    """The segments of one worker process, which allocates its batches here.

    Without ``memfd_create``, which only Linux has, batches are in ordinary memory. Threads may
    share the segments.

    Args:
        keep: number of free segments to keep; more if an answer takes several segments.
    """

    def __init__(self, keep: int) -> None:
        self.worker = 0
        self._keep = keep
        self._num_per_answer = 1
        """Number of segments per answer, slowly falling."""
        self._process: int | None = None
        """Process that fills the segments; its forked children must not."""
        self._lock = threading.Lock()
        self._segments: OrderedDict[int, _Segment] = OrderedDict()
        """By number, those that were lent last at the end."""
        self._by_address: dict[int, _Segment] = {}
        """The same segments by their addresses."""
        self._num_made = 0
        self._dropped: deque[int] = deque()
        """Numbers of the segments that tensors of this process no longer use.

        Tensors may die in any thread, and inside any of these functions, so their end is only noted
        here.
        """
        self._given_up: list[SegmentId] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """Let multiprocessing send them to a new process; there are no segments yet."""
        return WorkerSegments, (self._keep,)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes <= MAX_COPY or not _has_segments() or not self._are_own():
            return torch.empty(shape, dtype=dtype, device="cpu")
        with self._lock:
            segment = self._free_segment(num_bytes)
            segment.is_lent = True
            segment.num_bytes = num_bytes
        base = segment.memory[:num_bytes].numpy()
        tensor = lend(base, partial(self._dropped.append, segment.number))
        return tensor.view(dtype).view(shape)

    def number_of(self, storage: torch.UntypedStorage) -> int | None:
        """Return the number of the segment that holds a storage, if the segment can be sent."""
        segment = self._by_address.get(storage.data_ptr()) if self._are_own() else None
        if segment is None or segment.is_sent or not segment.is_lent:
            return None
        return segment.number

    def send(self, numbers: Sequence[int]) -> tuple[SentSegment, ...]:
        """Return the segments of an answer in the form in which they are sent.

        The main process then has them until it returns them.
        """
        self._num_per_answer = max(len(numbers), self._num_per_answer * 7 // 8)
        return tuple(map(self._send, numbers))

    def _send(self, number: int) -> SentSegment:
        segment = self._segments[number]
        segment.is_sent = True
        file, segment.file = segment.file, None
        descriptor = None
        if file is not None:
            descriptor = OpenFile(file)
        where = SegmentId(self.worker, number)
        return SentSegment(where, segment.size, segment.num_bytes, descriptor)

    def take_back(self, returned: tuple[Returned, ...]) -> None:
        """Take the segments that the main process returns."""
        with self._lock:
            for number, may_be_filled in returned:
                if may_be_filled:
                    self._segments[number].is_sent = False
                else:
                    self._forget(self._segments[number])

    def given_up(self) -> tuple[SegmentId, ...]:
        """Return the segments that will not be used again; each is returned once."""
        with self._lock:
            given_up, self._given_up = self._given_up, []
        return tuple(given_up)

    def _are_own(self) -> bool:
        self._process = self._process or os.getpid()
        return self._process == os.getpid()

    def _free_segment(self, num_bytes: int) -> _Segment:
        """Return the smallest free segment that is large enough, or a new one."""
        while self._dropped:
            segment = self._segments.get(self._dropped.popleft())
            if segment is not None:
                segment.is_lent = False
        free = [segment for segment in self._segments.values() if segment.is_free]
        chosen = min((each for each in free if each.size >= num_bytes), key=_SIZE, default=None)
        if chosen is None:
            chosen = _Segment(self._num_made, _rounded(num_bytes))
            self._segments[chosen.number] = self._by_address[chosen.memory.data_ptr()] = chosen
            self._num_made += 1
        else:
            free.remove(chosen)
        self._segments.move_to_end(chosen.number)
        # Those lent longest ago are given up, not the smallest, so that small tensors do not end up
        # in large segments.
        surplus = len(free) - (self._keep - 1 + self._num_per_answer)
        for segment in free[: max(surplus, 0)]:
            self._forget(segment)
            self._given_up.append(SegmentId(self.worker, segment.number))
        return chosen

    def _forget(self, segment: _Segment) -> None:
        del self._segments[segment.number], self._by_address[segment.memory.data_ptr()]


class _Segment:
    """Shared memory without a name."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.file: int | None = os.memfd_create("stateful_gpu_loader")
        """File descriptor until it is sent."""
        os.ftruncate(self.file, size)
        self.memory = _mapped(self.file, size)
        self.size = size
        """Size in bytes."""
        self.num_bytes = 0
        """Number of bytes that were last lent."""
        self.is_lent = False
        """Whether a tensor of this process may use it."""
        self.is_sent = False
        """Whether a tensor of the main process uses or may use it."""

    @property
    def is_free(self) -> bool:
        return not self.is_lent and not self.is_sent

    def __del__(self) -> None:
        if self.file is not None:
            os.close(self.file)


class MappedSegments:
    """The workers' segments that the main process has mapped."""

    def __init__(self) -> None:
        self._mapped: dict[SegmentId, torch.Tensor] = {}
        self._dropped: defaultdict[int, deque[tuple[int, int]]] = defaultdict(deque)
        """For each worker, the segments that tensors of this process no longer use.

        Each has the number of forks when it was lent. Tensors may die anywhere, so their end is
        only noted here.
        """

    def lend(self, sent: SentSegment) -> torch.UntypedStorage:
        """Return the storage of a batch; the segment is returned when nothing refers to it.

        Raises:
            OSError: the segment cannot be received or mapped.
        """
        if sent.descriptor is not None:
            file = sent.descriptor.detach()
            try:
                self._mapped[sent.id] = _mapped(file, sent.size)
            finally:
                os.close(file)
        worker, number = sent.id
        drop = partial(self._dropped[worker].append, (number, _FORKS.count))
        return lend(self._mapped[sent.id][: sent.num_bytes].numpy(), drop).untyped_storage()

    def unmap(self, given_up: tuple[SegmentId, ...]) -> None:
        """Unmap segments that their workers will not use again, if they were ever sent."""
        for where in given_up:
            self._mapped.pop(where, None)

    def forget(self, worker: int) -> None:
        """Unmap the segments of a worker that has ended; tensors keep their memory."""
        for where in [each for each in self._mapped if each.worker == worker]:
            del self._mapped[where]
        self._dropped.pop(worker, None)

    def to_return(self, worker: int) -> tuple[Returned, ...]:
        """Return the segments to return to a worker with its next request."""
        dropped, returned = self._dropped[worker], []
        while dropped:
            number, forks = dropped.popleft()
            may_be_filled = forks == _FORKS.count
            if not may_be_filled:
                del self._mapped[SegmentId(worker, number)]
            returned.append(Returned(number, may_be_filled))
        return tuple(returned)


class _Forks:
    """Counts the forks of this process.

    A forked child keeps its parent's tensors on the same shared memory, so segments lent at that
    time are not filled again. Each fork is counted before and after, for segments that another
    thread lends or drops in between.
    """

    def __init__(self) -> None:
        self.count = 0
        os.register_at_fork(before=self._note, after_in_parent=self._note)

    def _note(self) -> None:
        self.count += 1


_FORKS = _Forks()


def _has_segments() -> bool:
    return hasattr(os, "memfd_create") and _DESCRIPTORS.is_dir()


def _mapped(file: int, size: int) -> torch.Tensor:
    """Map shared memory for the tensor's lifetime; the descriptor may be closed."""
    return torch.from_file(str(_DESCRIPTORS / str(file)), shared=True, size=size, dtype=torch.uint8)


def _rounded(num_bytes: int) -> int:
    """Add up to an eighth, because encoded batches vary in size."""
    step = 1 << (num_bytes.bit_length() - 4)
    return -(-num_bytes // step) * step


_SIZE = attrgetter("size")
