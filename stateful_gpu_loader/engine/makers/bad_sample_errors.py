"""Decides which exceptions mean a bad sample: those that its content alone causes.

A network that is down, a bug or a lack of memory would otherwise pass for bad samples, and training
would silently continue on other data. In doubt the exception is raised.
"""

from __future__ import annotations

import gzip
import random
import re

import numpy as np
import torch

from stateful_gpu_loader.decoders.rule import NO_CAUSE, OUT_OF_MEMORY
from stateful_gpu_loader.engine.pipeline import Stopped
from stateful_gpu_loader.errors import BadSample, LoaderError
from stateful_gpu_loader.state.bad_samples import shortened

_NEVER_BAD = (
    TypeError,
    AttributeError,
    NameError,
    NotImplementedError,
    ImportError,
    SyntaxError,
    MemoryError,
    RecursionError,
    StopIteration,
    Warning,
    LoaderError,
    Stopped,
)
"""Exceptions of the code or the machine.

RecursionError also depends on the caller, and Warning on the filters.
"""

_OF_THE_MACHINE = re.compile(f"{OUT_OF_MEMORY.pattern}|{NO_CAUSE.pattern}", re.I | re.M)

_LONGEST_NAME = 100


def is_bad(error: BaseException) -> bool:
    """Whether an exception of a user's own dataset, iterable or transform means a bad sample.

    Any Exception does, except

    - those of the code: TypeError, AttributeError, NameError, NotImplementedError, ImportError
      and the like (IndexError and KeyError are what malformed records raise, and are bad);
    - a lack of memory, and what torch's operators say if they do not say the cause;
    - an OSError that reports a failure of the system: one that has an ``errno``, or is of a class
      of its own, such as FileNotFoundError, TimeoutError or requests' ConnectionError. Pillow
      raises OSErrors for damaged bytes, and these are bad: the plain class without an ``errno``,
      UnidentifiedImageError, and gzip's BadGzipFile.

    A client library that reports a lost connection by any other exception is not recognised; wrap
    it to raise an OSError.

    >>> is_bad(KeyError("label")), is_bad(OSError("image file is truncated"))
    (True, True)
    >>> is_bad(OSError(5, "Input/output error")), is_bad(AttributeError("no such field"))
    (False, False)
    """
    if isinstance(error, BadSample):
        return True
    if isinstance(error, OSError):
        kind = type(error)
        named = f"{kind.__module__}.{kind.__qualname__}"
        of_bytes = kind in (OSError, gzip.BadGzipFile) or named == "PIL.UnidentifiedImageError"
        return of_bytes and error.errno is None
    if isinstance(error, RuntimeError) and _OF_THE_MACHINE.search(str(error)):
        return False
    return isinstance(error, Exception) and not isinstance(error, _NEVER_BAD)


def is_bad_encoding(error: BaseException) -> bool:
    """Whether an exception from a Source means a bad sample: only a BadSample does.

    A Source distinguishes malformed records (ValueError, which becomes a BadSample) from failures
    of the storage (OSError). Exceptions of its transform, which gets valid pixels, are not about
    the sample.
    """
    return isinstance(error, BadSample)


def reason_of(error: BaseException) -> str:
    """Return the reason for the record: the exception's type and message, at most 200 characters.

    >>> reason_of(KeyError("label"))
    "KeyError: 'label'"
    """
    message = str(error)
    if isinstance(error, BadSample):
        # The record already has index, position and epoch; a long path is cut at its beginning.
        name = error.name
        if len(name) > _LONGEST_NAME:
            name = f"...{name[3 - _LONGEST_NAME :]}"
        message = f"{name}: {error.reason}"
    return shortened(f"{type(error).__name__}: {message}" if message else type(error).__name__)


def next_draws() -> tuple[int, bytes, int]:
    """Draw from the three global generators, to see whether anything else has drawn since."""
    drawn = torch.empty((), dtype=torch.int64, device="cpu")
    drawn.random_(generator=torch.default_generator)
    return random.getrandbits(64), np.random.bytes(8), int(drawn.item())
