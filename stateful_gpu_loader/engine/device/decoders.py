"""ThreadDecoders: a decoder for each thread of the stage, as a decoder serves one thread."""

from __future__ import annotations

import copy
import threading
import weakref

from stateful_gpu_loader.decoders.decoder import BatchDecoder
from stateful_gpu_loader.state.forks import fork_safe


class ThreadDecoders:
    """Copies of one decoder, which give the same pixels, for the life of the threads that use them.

    The first thread uses the decoder itself. Another one gets it when the first has ended. A thread
    that hangs keeps its decoder.
    """

    def __init__(self) -> None:
        self._own = threading.local()
        self._user: threading.Thread | None = None
        """Thread that uses the decoder itself."""
        self._lock = fork_safe(threading.RLock())

    @classmethod
    def of(cls, decoder: BatchDecoder) -> ThreadDecoders:
        """Return the decoders of all threads that share ``decoder``, from one pass to the next."""
        with _lock:
            return _all.setdefault(decoder, cls())

    def for_this_thread(self, decoder: BatchDecoder) -> BatchDecoder:
        """Return the calling thread's decoder.

        Args:
            decoder: the one that the copies are made of.
        """
        here = threading.current_thread()
        with self._lock:
            if self._user is None or not self._user.is_alive():
                self._user = None if hasattr(self._own, "copied") else here
            if self._user is here:
                return decoder  # no reference to it is kept
        if not hasattr(self._own, "copied"):
            self._own.copied = copy.copy(decoder)
        copied: BatchDecoder = self._own.copied
        return copied


_all: weakref.WeakKeyDictionary[BatchDecoder, ThreadDecoders] = weakref.WeakKeyDictionary()
_lock = fork_safe(threading.RLock())
