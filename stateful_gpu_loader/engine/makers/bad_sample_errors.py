"""Which exceptions mean that a sample is bad: those that its content decides.

A network that is down, a bug, a lack of memory would otherwise pass for bad samples, and the
stream would go on with others as if nothing had happened. Where it is in doubt, it is raised.
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
"""Of the code or the machine; a RecursionError also depends on who calls, a Warning on filters."""

_OF_THE_MACHINE = re.compile(f"{OUT_OF_MEMORY.pattern}|{NO_CAUSE.pattern}", re.I | re.M)

_LONGEST_NAME = 100


def is_bad(error: BaseException) -> bool:
    """Whether an exception of a user's own dataset, iterable or transform is a bad sample's.

    Any Exception is, but for

    - those of the code: TypeError, AttributeError, NameError, NotImplementedError, ImportError
      and the like (IndexError and KeyError are what malformed records raise, and are bad);
    - a lack of memory, and what torch's operators say if they do not say the cause;
    - an OSError that reports a failure of the system: one that has an ``errno``, or is of a class
      of its own, such as FileNotFoundError, TimeoutError or requests' ConnectionError. Pillow
      raises OSErrors for damaged bytes, and these are bad: the plain class without an ``errno``,
      UnidentifiedImageError, and gzip's BadGzipFile.

    A client library that reports a lost connection by any other exception is not recognised: its
    caller should turn that into an OSError.

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
    """Whether an exception met with a Source is a bad sample's: a BadSample alone.

    A Source tells malformed records (ValueError, which becomes a BadSample) from a failure of
    the storage (OSError); its transform sees sound pixels, and what that raises is its own.
    """
    return isinstance(error, BadSample)


def reason_of(error: BaseException) -> str:
    """What is wrong, for the record: the exception's type and message, at most 200 characters.

    >>> reason_of(KeyError("label"))
    "KeyError: 'label'"
    """
    message = str(error)
    if isinstance(error, BadSample):
        # Without index, position and epoch, which the record has, and the end of a long path.
        name = error.name
        if len(name) > _LONGEST_NAME:
            name = f"...{name[3 - _LONGEST_NAME :]}"
        message = f"{name}: {error.reason}"
    return shortened(f"{type(error).__name__}: {message}" if message else type(error).__name__)


def next_draws() -> tuple[int, bytes, int]:
    """What the three global generators give next: as before only if nothing was drawn since."""
    drawn = torch.empty((), dtype=torch.int64, device="cpu")
    drawn.random_(generator=torch.default_generator)
    return random.getrandbits(64), np.random.bytes(8), int(drawn.item())
