"""ReadsAhead: announces the next samples to a remote source.

This cannot change a batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from torch.utils.data import get_worker_info

from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.engine.pipeline import Maker
from stateful_gpu_loader.records import Request
from stateful_gpu_loader.samplers.blocks import BlockEpoch
from stateful_gpu_loader.samplers.orders import EpochOrder, PositionOrder, key_offset_of

_MAX_OVERTAKING = 1024
"""Number of requests that may begin before an earlier request."""
_MAX_WINDOW = 1 << 20
"""Maximum average number of samples in a window."""


class ReadsAhead:
    """Lets a source fetch the samples of a batch together, before another maker reads them.

    In threads, which share the source, the next batch of each thread is announced too. If the order
    goes through blocks and there is one rank, whole windows of blocks are announced, the next
    window while the present one is read.

    Args:
        source: a remote source.
        order: the loader's order; None if the user's own sampler decides.
        num_workers: number of threads that make batches.
    """

    def __init__(
        self, source: Source, maker: Maker, *, order: PositionOrder | None, num_workers: int
    ) -> None:
        self._source = source
        self._maker = maker
        self._order = order
        self._announcements = Announcements(max(1, num_workers))

    @property
    def uses_global_generators(self) -> bool:
        return self._maker.uses_global_generators

    def __call__(self, request: Request, check: Callable[[], None]) -> Any:
        # The next batches are made by other processes, with their own sources.
        if self._order is not None and request.listed is None and get_worker_info() is None:
            order = self._order.of_epoch(request.seed, request.epoch)
            self._announcements.announce(self._source, order, request)
        elif isinstance(request.indices, np.ndarray):
            self._source.expect(request.indices)
        return self._maker(request, check)


class Announcements:
    """Prefetch hints of a pass: indices already announced to the source; threads share it.

    Each sample is announced once, before any thread can have read it.

    Args:
        num_batches: number of batches to announce ahead.
    """

    def __init__(self, num_batches: int) -> None:
        self._num_batches = num_batches
        self._lock = threading.Lock()
        self._epoch: tuple[int, int] | None = None
        self._recent_ordinals: set[int] = set()
        """Ordinals of this pass's requests that began recently."""
        self._position = 0
        """Position before which all of this rank's samples are announced."""
        self._window = -1
        """The last announced window of blocks."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Announcements, (self._num_batches,)

    def announce(self, source: Source, order: EpochOrder, request: Request) -> None:
        """Announce the samples of a request and the following ones."""
        size = request.step * len(request.indices)
        start = request.start - key_offset_of(order)
        with self._lock:
            if self._is_of_another_pass(request):
                self._epoch, self._recent_ordinals = (request.seed, request.epoch), set()
                # Earlier requests may not have begun.
                self._position = max(start % request.step, start - request.ordinal * size)
                self._window = -1
                source.expect(np.empty(0, dtype=np.int64), anew=True)
            self._recent_ordinals.add(request.ordinal)
            if isinstance(order, BlockEpoch) and request.step == 1:
                self._announce_windows(source, order, start)
            end = min(start + (1 + self._num_batches) * size, order.n)
            positions = np.arange(self._position, end, request.step, dtype=np.int64)
            if len(positions):
                self._position = int(positions[-1]) + request.step
                source.expect(order(positions))

    def _is_of_another_pass(self, request: Request) -> bool:
        latest = max(self._recent_ordinals, default=0)
        if len(self._recent_ordinals) > 2 * _MAX_OVERTAKING:
            self._recent_ordinals = {
                ordinal for ordinal in self._recent_ordinals if ordinal > latest - _MAX_OVERTAKING
            }
        return (
            self._epoch != (request.seed, request.epoch)
            or request.ordinal in self._recent_ordinals
            or request.ordinal <= latest - _MAX_OVERTAKING
        )

    def _announce_windows(self, source: Source, order: BlockEpoch, start: int) -> None:
        if order.window * order.n > _MAX_WINDOW * order.layout.num_blocks:
            return
        window = order.window_of(start)
        for number in range(max(window, self._window + 1), window + 2):
            source.expect(order.indices_of(number))
            self._window = number
