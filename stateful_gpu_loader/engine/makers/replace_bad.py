"""Replaces or leaves out the bad samples of one request, each on its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy, reason_of
from stateful_gpu_loader.engine.pipeline import Answer
from stateful_gpu_loader.errors import BadSample
from stateful_gpu_loader.records import Request, SampleKey
from stateful_gpu_loader.state.bad_samples import FoundBad, plain_index

T = TypeVar("T")

MAX_READS = 3
"""Number of times that a sample is read in all while the system reports an OSError."""


class Slot:
    """One place of a batch: its key, and the sample that is tried for it."""

    __slots__ = ("candidates", "found", "key", "left_out", "number", "origin", "sample")

    def __init__(self, number: int, key: SampleKey) -> None:
        self.number = number
        """Number of the place in its request, counted from 0."""
        self.key = key
        """Key of the sample.

        Its position, and so its random numbers, never change; the index becomes a replacement's
        once the sample was found bad.
        """
        self.origin = key.position
        """Position of the tried index in the order."""
        self.sample: Any = None
        """What was made of the sample so far; None again after a replacement."""
        self.left_out = False
        self.found: tuple[FoundBad, ...] = ()
        self.candidates: Iterator[tuple[int, Any]] | None = None


class BadSampleReplacer:
    """Makes the samples of one request, and replaces or leaves out the bad ones.

    With "raise" a bad sample's exception is raised, and nothing is tried again.

    The result depends on the request and the samples' content alone, not on what was known before,
    nor on the stage at which a sample turns out to be bad: each place has its own sequence of
    candidates and takes the first that passes every stage.

    Args:
        policy: what is done about bad samples.
        request: the request.
        is_bad: whether an exception means a bad sample.
        has_drawn: whether random draws may have caused the exception that a place just met.
    """

    def __init__(
        self,
        policy: BadSamplePolicy,
        request: Request,
        *,
        is_bad: Callable[[BaseException], bool],
        has_drawn: Callable[[Slot], bool],
    ) -> None:
        self._policy = policy
        self._request = request
        self._is_bad = is_bad
        self._has_drawn = has_drawn
        self._slots = [Slot(number, key) for number, key in enumerate(request.keys())]
        self._drops = policy.mode == "drop"
        self.replaces = policy.is_active
        """Whether bad samples are replaced or left out rather than raised."""

    @property
    def kept(self) -> list[Slot]:
        """The places that are not left out, in order."""
        return [slot for slot in self._slots if not slot.left_out]

    def knows_any(self) -> bool:
        """Whether a sample of the request is known to be bad."""
        return self._policy.knows_any(self._request.index_list())

    def settle(self, make: Callable[[Slot], None]) -> list[Slot]:
        """Make the sample of every place, and return the places that are kept, at least one."""
        for slot in self.kept:
            self.fill(slot, make)
        if not self.kept and self._slots:
            # Code that iterates the loader does not expect empty batches, so one replacement is
            # made.
            self._drops = False
            first = self._slots[0]
            first.left_out = False
            self._replace(first)
            self.fill(first, make)
        return self.kept

    def fill(self, slot: Slot, make: Callable[[Slot], None]) -> bool:
        """Make one place's sample, replaced if need be; return False if it is left out instead.

        Raises:
            BadSample: none of its replacements could be used.
        """
        if not self.replaces:
            make(slot)
            return True
        while not self._is_made(slot, make):
            if self._drops:
                slot.left_out = True
                return False
            self._replace(slot)
        return True

    def answer(self, payload: Any) -> Any:
        """Return the batch, with a record of the bad samples that were met for it."""
        found = tuple(bad for slot in self._slots for bad in slot.found)
        if not found:
            return payload
        return Answer(payload, bad=found, num_samples=len(self.kept))

    def _is_made(self, slot: Slot, make: Callable[[Slot], None]) -> bool:
        reason, always = self._policy.known_reason(slot.key.index), True
        if reason is None:
            try:
                retried(lambda: make(slot), is_bad=self._is_bad)
            except Exception as error:
                if not self._is_bad(error):
                    raise
                reason = reason_of(error)
                always = isinstance(error, BadSample) or not self._has_drawn(slot)
            else:
                return True
        key = slot.key
        bad = FoundBad(key.index, slot.origin, key.epoch, reason, always)
        slot.found += (bad,)
        self._policy.remember(bad)
        return False

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
    """Call a function, up to 3 times in all while it raises an OSError that is not the sample's.

    If ``make`` draws random numbers it must seed them itself, so that another attempt draws the
    same.
    """
    for _ in range(MAX_READS - 1):
        try:
            return make()
        except OSError as error:
            if is_bad(error):
                raise
    return make()
