"""One request's samples, each judged by itself, the bad ones replaced or left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from stateful_gpu_loader.engine.makers.bad_sample_errors import reason_of
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.pipeline import Answer
from stateful_gpu_loader.errors import BadSample
from stateful_gpu_loader.records import Request, SampleKey
from stateful_gpu_loader.state.bad_samples import FoundBad, plain_index

T = TypeVar("T")

MAX_READS = 3
"""How often a sample is read in all while the system reports an OSError."""


class Slot:
    """One place of a batch: its key, and the sample that is tried for it."""

    __slots__ = ("candidates", "found", "key", "left_out", "number", "origin", "sample")

    def __init__(self, number: int, key: SampleKey) -> None:
        self.number = number
        """Of the place in its request, counted from 0."""
        self.key = key
        """Its position never changes, and so neither do its draws; the index is a replacement's
        once the sample was found bad."""
        self.origin = key.position
        """Where the order has the index that is tried."""
        self.sample: Any = None
        """What was made of it so far; None again when it is replaced."""
        self.left_out = False
        self.found: tuple[FoundBad, ...] = ()
        self.candidates: Iterator[tuple[int, Any]] | None = None


class BadSampleReplacer:
    """The samples of one request, the bad ones among them replaced or left out.

    Under "raise" a bad sample's exception is raised, and nothing is tried again.

    What comes out is a function of the request and of the samples' content. It does not
    depend on what was known before, nor on the stage at which a sample turns out to be bad: each
    place has its own row of candidates, and takes the first that passes every stage.

    Args:
        policy: what is done about a bad sample.
        request: whose samples they are.
        is_bad: whether an exception is a bad sample's.
        has_drawn: whether random draws may have decided the exception that a place just met.
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
        """Whether anything is done about bad samples but raising."""

    @property
    def kept(self) -> list[Slot]:
        """The places that are not left out, in order."""
        return [slot for slot in self._slots if not slot.left_out]

    def knows_any(self) -> bool:
        """Whether a sample of the request is known to be bad."""
        reason = self._policy.known_reason
        return any(reason(slot.key.index) is not None for slot in self._slots)

    def settle(self, make: Callable[[Slot], None]) -> list[Slot]:
        """Make every place's sample; the places that are kept, at least one."""
        for slot in self.kept:
            self.fill(slot, make)
        if not self.kept and self._slots:
            # A batch that is left empty keeps a replacement: a loop does not expect 0 samples.
            self._drops = False
            first = self._slots[0]
            first.left_out = False
            self._replace(first)
            self.fill(first, make)
        return self.kept

    def fill(self, slot: Slot, make: Callable[[Slot], None]) -> bool:
        """Make one place's sample, replaced if need be; False if it is left out instead.

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
        """The batch, with the bad samples that were met for it."""
        found = tuple(bad for slot in self._slots for bad in slot.found)
        return Answer(payload, bad=found) if found else payload

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
        bad = FoundBad(plain_index(key.index), slot.origin, key.epoch, reason, always)
        slot.found += (bad,)
        self._policy.remember(bad)
        return False

    def _replace(self, slot: Slot) -> None:
        if slot.candidates is None:
            slot.candidates = self._policy.candidates(self._request, slot.number)
        tried = {bad.index for bad in slot.found}
        for origin, index in slot.candidates:
            if plain_index(index) not in tried:  # the same sample may come at several positions
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
    """Call; an OSError that is not the sample's is met again, at most 3 times in all, and raised.

    A ``make`` that draws random numbers seeds them itself, so that a second attempt draws the same.
    """
    for _ in range(MAX_READS - 1):
        try:
            return make()
        except OSError as error:
            if is_bad(error):
                raise
    return make()
