"""Bad samples: which exceptions mean a bad sample, and how it is handled and replaced.

Only the content of a sample can make it bad. Otherwise training would silently continue on other
data after a network failure, a bug or a lack of memory. In doubt the exception is raised.
"""

from __future__ import annotations

import dataclasses
import gzip
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from stateful_gpu_loader.decoders.rule import NO_CAUSE, OUT_OF_MEMORY
from stateful_gpu_loader.engine.pipeline import Answer, Stopped
from stateful_gpu_loader.errors import BadSample, LoaderError
from stateful_gpu_loader.randomness.philox import WORDS_PER_BLOCK, Stream, words
from stateful_gpu_loader.records import Request, SampleKey
from stateful_gpu_loader.samplers.orders import PositionOrder, key_offset_of
from stateful_gpu_loader.state.bad_samples import FoundBad, plain_index, shortened

T = TypeVar("T")

_NEVER_BAD = (
    TypeError,
    AttributeError,
    NameError,
    NotImplementedError,
    ImportError,
    SyntaxError,
    MemoryError,
    RecursionError,
    SystemError,
    StopIteration,
    Warning,
    LoaderError,
    Stopped,
)
"""Exceptions caused by the code or the machine."""

_MACHINE_FAULT = re.compile(f"{OUT_OF_MEMORY.pattern}|{NO_CAUSE.pattern}", re.I | re.M)

_MAX_NAME_LENGTH = 100


def is_bad(error: BaseException) -> bool:
    """Whether an exception of a user's own dataset, iterable or transform means a bad sample.

    Every Exception does, except:

    - Exceptions of the code: TypeError, AttributeError, NameError, NotImplementedError, ImportError
      and the like; not IndexError and KeyError, which malformed records raise.
    - A lack of memory, a SystemError, and errors of torch's operators that do not name a cause.
    - An OSError that reports a failure of the system: it has an ``errno``, or a class of its own,
      such as FileNotFoundError, TimeoutError or requests' ConnectionError. Pillow's OSErrors for
      damaged bytes do mean a bad sample: the plain class without an ``errno``, and
      UnidentifiedImageError. So does gzip's BadGzipFile.

    If a client library reports a lost connection by another exception, wrap it to raise an OSError.

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
    if isinstance(error, RuntimeError) and _MACHINE_FAULT.search(str(error)):
        return False
    return isinstance(error, Exception) and not isinstance(error, _NEVER_BAD)


def is_bad_encoding(error: BaseException) -> bool:
    """Whether an exception from a Source means a bad sample: only a BadSample does.

    A Source distinguishes malformed records (ValueError, which becomes a BadSample) from failures
    of the storage (OSError). Its transform gets valid pixels, so a transform's exceptions do not
    count.
    """
    return isinstance(error, BadSample)


def reason_of(error: BaseException) -> str:
    """Return the exception's type and message, at most 200 characters.

    >>> reason_of(KeyError("label"))
    "KeyError: 'label'"
    """
    message = str(error)
    if isinstance(error, BadSample):
        # A long path is cut at its beginning.
        name = error.name
        if len(name) > _MAX_NAME_LENGTH:
            name = f"...{name[3 - _MAX_NAME_LENGTH :]}"
        message = f"{name}: {error.reason}"
    return shortened(f"{type(error).__name__}: {message}" if message else type(error).__name__)


def next_draws() -> tuple[int, bytes, int]:
    """Draw from the three global generators, to detect later draws."""
    drawn = torch.empty((), dtype=torch.int64, device="cpu")
    drawn.random_(generator=torch.default_generator)
    return random.getrandbits(64), np.random.bytes(8), int(drawn.item())


ON_BAD_SAMPLE = ("raise", "replace", "drop")

MAX_READS = 3
"""Maximum number of reads of a sample that fails with one of ``RETRIED``."""

RETRIED = (OSError, SystemError)
"""Failures that may be temporary.

``numpy.load`` parses Python literals, which raises SystemError in CPython 3.11 and 3.12 if another
thread parses one at the same time (gh-106905).
"""

MAX_TRIES = 8
"""Maximum number of replacements that are tried for a bad sample."""

MAX_BAD_IN_A_ROW = 100
"""Number of consecutive bad samples after which an exception is raised.

Otherwise an iterator that only raises would be called for ever.
"""

MAX_REMEMBERED = 10_000
"""Number of bad samples that a worker remembers besides those known at its start."""


@dataclass(frozen=True, kw_only=True)
class BadSamplePolicy:
    """How makers handle bad samples; it is pickled to the workers.

    A sample known to be bad is not read again.

    Raises:
        ValueError: the mode does not exist.
    """

    mode: str
    order: PositionOrder | None = None
    """The loader's order; None if the user's own sampler decides."""
    known: Mapping[int, str] = field(default_factory=dict)
    """Indices that need not be read, with reasons; see :attr:`BadSamples.known`."""
    reads_again: bool = False
    """Whether known bad samples are read, because reads move the dataset's state."""
    _remembered: dict[int | str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.mode not in ON_BAD_SAMPLE:
            raise ValueError(
                f"on_bad_sample={self.mode!r} is not in {ON_BAD_SAMPLE}. Remedy: pass one of them"
            )
        object.__setattr__(self, "known", dict(self.known))
        object.__setattr__(self, "_remembered", {} if self.reads_again else dict(self.known))

    @property
    def is_active(self) -> bool:
        """Whether bad samples are replaced or dropped rather than raised."""
        return self.mode != "raise"

    def known_reason(self, index: Any) -> str | None:
        """Return why a sample need not be read, or None."""
        return self._remembered.get(plain_index(index)) if self._remembered else None

    def knows_any(self, indices: list[Any]) -> bool:
        """Whether one of these samples need not be read."""
        if not (self.is_active and self._remembered):
            return False
        return any(self.known_reason(index) is not None for index in indices)

    def remember(self, bad: FoundBad) -> None:
        """Remember that a sample is bad."""
        if (
            bad.always
            and not self.reads_again
            and isinstance(bad.index, int)
            and len(self._remembered) < len(self.known) + MAX_REMEMBERED
        ):
            self._remembered[bad.index] = bad.reason

    def candidates(self, request: Request, number: int) -> Iterator[tuple[int, Any]]:
        """Yield position and index of the samples to try in place of a bad sample, in order.

        The key chooses other positions of the order, uniformly and without repetition, at most
        ``MAX_TRIES``; without an order, other samples of the batch.

        Args:
            number: number of the sample in the request, counted from 0.
        """
        positions = request.positions
        position = int(positions[number])
        if self.order is None:
            indices = request.index_list()
            for other in _others(request, position, number, len(indices)):
                yield int(positions[other]), indices[other]
            return
        order = self.order.of_epoch(request.seed, request.epoch)
        own = (position - key_offset_of(order)) % order.n
        for other in _others(request, position, own, order.n):
            yield other, int(order(np.array([other], dtype=np.int64))[0])


def _others(request: Request, position: int, own: int, n: int) -> Iterator[int]:
    """Yield distinct elements of range(n) other than ``own``, drawn by the key's position.

    These are the first steps of a Fisher-Yates shuffle of the n - 1 others, which stores only the
    moved elements. Each step takes one Philox block, 128 bits.
    """
    num_tries = min(MAX_TRIES, n - 1)
    drawn = words(
        request.seed,
        request.epoch,
        [position],
        Stream.REPLACEMENT,
        MAX_TRIES * WORDS_PER_BLOCK,
    )
    moved: dict[int, int] = {}
    for step, block in enumerate(drawn.reshape(MAX_TRIES, WORDS_PER_BLOCK)[:num_tries].tolist()):
        number = sum(word << 32 * place for place, word in enumerate(block))
        chosen = step + (number * (n - 1 - step) >> 128)
        other = moved.get(chosen, chosen)
        moved[chosen] = moved.get(step, step)
        yield other + (other >= own)


class Slot:
    """One place of a batch: its key, and the sample tried for it.

    Args:
        number: number of the place in its request, counted from 0.
        key: key of the sample. Its position, and so its random numbers, never change; its index
            becomes a replacement's.
    """

    sample: Any = None
    """Progress on the sample, such as the opened image."""
    found: tuple[FoundBad, ...] = ()
    """Samples that were tried for the place and found bad."""
    candidates: Iterator[tuple[int, Any]] | None = None

    def __init__(self, number: int, key: SampleKey) -> None:
        self.number = number
        self.key = key
        self.origin = key.position
        """Position of the tried index in the order."""


class BadSampleReplacer:
    """Makes the samples of one request, and replaces or drops bad samples.

    With "raise" a bad sample's exception is raised, and nothing is retried.

    The result depends only on the request and the samples' content: each place has its own sequence
    of candidates and takes the first that passes every stage.

    Args:
        is_bad: whether an exception means a bad sample.
        has_drawn: whether random draws may have caused a place's last exception; None if nothing
            draws.
    """

    def __init__(
        self,
        policy: BadSamplePolicy,
        request: Request,
        *,
        is_bad: Callable[[BaseException], bool] = is_bad_encoding,
        has_drawn: Callable[[Slot], bool] | None = None,
    ) -> None:
        self._policy = policy
        self._request = request
        self._is_bad = is_bad
        self._has_drawn = has_drawn
        self._slots = [Slot(number, key) for number, key in enumerate(request.keys())]
        self._drops = policy.mode == "drop"
        self.kept = list(self._slots)
        """The places that are not dropped, in order."""
        self.replaces = policy.is_active
        """Whether bad samples are replaced or dropped rather than raised."""

    def knows_any(self) -> bool:
        """Whether a sample of the request is known to be bad."""
        return self._policy.knows_any(self._request.index_list())

    def fill_all(self, make: Callable[[Slot], object]) -> list[Slot]:
        """Make the sample of every place; return the places that are kept, at least one."""
        for slot in list(self.kept):
            self.fill(slot, make)
        if not self.kept and self._slots:
            # The user's code does not expect empty batches, so one replacement is made.
            self._drops = False
            first = self._slots[0]
            self.kept.append(first)
            self._replace(first)
            self.fill(first, make)
        return list(self.kept)

    def fill(self, slot: Slot, make: Callable[[Slot], T]) -> T | None:
        """Make one place's sample, replaced if necessary.

        Returns:
            Result of ``make``; None if the place is dropped instead.

        Raises:
            BadSample: none of its replacements could be used.
        """
        while self.replaces:
            always, reason = True, self._policy.known_reason(slot.key.index)
            if reason is None:
                try:
                    return retried(lambda: make(slot), is_bad=self._is_bad)
                except Exception as error:
                    if not self._is_bad(error):
                        raise
                    reason = reason_of(error)
                    has_drawn = self._has_drawn
                    always = isinstance(error, BadSample) or not (has_drawn and has_drawn(slot))
            bad = FoundBad(slot.key.index, slot.origin, slot.key.epoch, reason, always)
            slot.found += (bad,)
            self._policy.remember(bad)
            if self._drops:
                self.kept.remove(slot)
                return None
            self._replace(slot)
        return make(slot)

    def answer(self, payload: Any) -> Any:
        """Return the batch, with a record of its bad samples."""
        found = tuple(bad for slot in self._slots for bad in slot.found) if self.replaces else ()
        if not found:
            return payload
        return Answer(payload, bad=found, num_samples=len(self.kept))

    def _replace(self, slot: Slot) -> None:
        if slot.candidates is None:
            slot.candidates = self._policy.candidates(self._request, slot.number)
        tried = {bad.index for bad in slot.found}
        for origin, index in slot.candidates:
            if plain_index(index) not in tried:  # the same sample may have several positions
                slot.key = dataclasses.replace(slot.key, index=index)
                slot.origin = origin
                slot.sample = None
                return
        first = slot.found[0]
        where = "the batch" if self._policy.order is None else "the order"
        raise BadSample(
            f"dataset[{first.index!r}]",
            index=self._request.index_list()[slot.number],
            position=slot.key.position,
            epoch=slot.key.epoch,
            reason=f"{first.reason}; and {len(tried) - 1} other samples of {where}, tried in its "
            "place, could not be used either (on_bad_sample='raise' shows where it fails)",
        )


def retried(make: Callable[[], T], *, is_bad: Callable[[BaseException], bool]) -> T:
    """Call a function, up to 3 times while it fails with one of ``RETRIED``, but no bad sample.

    If ``make`` draws random numbers it must seed them itself.
    """
    for _ in range(MAX_READS - 1):
        try:
            return make()
        except RETRIED as error:
            if is_bad(error):
                raise
    return make()
