"""Record of samples that could not be used, as bounded text in a state."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from types import MappingProxyType
from typing import Any

from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.state.schema import MAX_EPOCH, MAX_POSITION, REMEDY_FOREIGN

MAX_SAMPLES = 100
"""Maximum number of named samples; further ones are only counted."""

MAX_TEXT = 200
"""Maximum number of characters of a reason or index."""


@dataclass(frozen=True, slots=True)
class FoundBad:
    """One sample that could not be used.

    >>> FoundBad(index=3, position=7, epoch=0, reason="ValueError: no label")
    FoundBad(index=3, position=7, epoch=0, reason='ValueError: no label', always=True)
    """

    index: int | str
    """``dataset[index]``; an index that is not an int is kept as text of at most 200 characters."""
    position: int
    """Position in the epoch's global order."""
    epoch: int
    reason: str
    """Reason for the failure, at most 200 characters."""
    always: bool = True
    """Whether the sample fails in every epoch, because no random number was drawn before the
    failure. If False, the sample is read again."""

    def __post_init__(self) -> None:
        # A user's sampler may yield any object.
        object.__setattr__(self, "index", plain_index(self.index))
        object.__setattr__(self, "reason", shortened(self.reason))


class BadSamples:
    """Record of the samples that could not be used in the delivered batches.

    The first finding of each index is kept, for at most 100 indices; all findings are counted.

    >>> record = BadSamples()
    >>> record.add([FoundBad(3, 7, 0, "ValueError: no label"), FoundBad(3, 2, 1, "the same")])
    >>> record
    BadSamples(total=2, samples=1)
    >>> record.samples[0].reason
    'ValueError: no label'
    >>> BadSamples.from_text(record.to_text()) == record
    True
    """

    def __init__(self) -> None:
        self._total = 0
        self._samples: dict[int | str, FoundBad] = {}

    @property
    def total(self) -> int:
        """Number of times that a sample could not be used, repeats included."""
        return self._total

    @property
    def samples(self) -> tuple[FoundBad, ...]:
        """First finding of each index, earliest first, at most 100."""
        return tuple(self._samples.values())

    @property
    def known(self) -> Mapping[int, str]:
        """Indices that need not be read again, each with its reason, as a fresh mapping."""
        return MappingProxyType(
            {
                index: bad.reason
                for index, bad in self._samples.items()
                if isinstance(index, int) and bad.always
            }
        )

    def add(self, found: Iterable[FoundBad]) -> None:
        """Add the findings of one delivered batch."""
        for bad in found:
            self._total += 1
            if len(self._samples) < MAX_SAMPLES:
                self._samples.setdefault(bad.index, bad)

    def followed_by(self, later: BadSamples) -> BadSamples:
        """Return a record of the findings in this record and in a later one."""
        record = BadSamples()
        for each in (self, later):
            record.add(each.samples)
        record._total = self.total + later.total
        return record

    @classmethod
    def union(cls, records: Iterable[BadSamples]) -> BadSamples:
        """Return a record of every named sample; its total is at least that of each record."""
        union = cls()
        for record in records:
            for bad in record.samples:
                if len(union) < MAX_SAMPLES:
                    union._samples.setdefault(bad.index, bad)
            union._total = max(union._total, record.total, len(union))
        return union

    def to_text(self) -> str | None:
        """Return the record as one line of JSON, or None while it is empty."""
        if not self._total:
            return None
        return json.dumps({"total": self._total, "samples": [*map(astuple, self.samples)]})

    @classmethod
    def from_text(cls, text: str | None) -> BadSamples:
        """Read back :meth:`to_text`.

        Raises:
            StateMismatch: the text is not a record.
        """
        record = cls()
        if text is None:
            return record
        try:
            fields = json.loads(text)
            total, rows = fields["total"], list(fields["samples"])
        except (TypeError, ValueError, KeyError, RecursionError) as error:
            raise _mismatch(text, f"JSON of a total and samples ({error!r})") from None
        for row in rows:
            if not _is_row(row):
                raise _mismatch(row, "[index, position, epoch, reason, always]")
        record._total = total
        record._samples = {row[0]: FoundBad(*row) for row in rows}
        if len(record) < len(rows) or len(rows) > MAX_SAMPLES:
            raise _mismatch(f"{len(rows)} samples", f"at most {MAX_SAMPLES}, no index twice")
        if type(total) is not int or total < max(1, len(rows)):
            raise _mismatch(f"a total of {total!r}", f"an int of at least {max(1, len(rows))}")
        return record

    def __len__(self) -> int:
        return len(self._samples)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BadSamples):
            return NotImplemented
        return (self.total, self.samples) == (other.total, other.samples)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"BadSamples(total={self.total}, samples={len(self)})"


def plain_index(index: Any) -> int | str:
    """Convert an index for a state: any kind of int to a Python int, anything else to text.

    >>> plain_index(5), plain_index("dog/rex.jpg"), plain_index((2, 7))
    (5, 'dog/rex.jpg', '(2, 7)')
    """
    if isinstance(index, str):
        return shortened(index)
    try:
        return int(operator.index(index))
    except TypeError:
        return shortened(repr(index))


def shortened(text: str) -> str:
    """Return the text as one line of at most 200 characters.

    >>> shortened("a\\n  b")
    'a b'
    """
    line = " ".join(text.split())
    return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 3]}..."


def _is_row(row: Any) -> bool:
    if not isinstance(row, list) or len(row) != len(FoundBad.__slots__):
        return False
    index, position, epoch, reason, always = row
    return (
        type(index) in (int, str)
        and plain_index(index) == index
        and type(position) is int
        and 0 <= position <= MAX_POSITION
        and type(epoch) is int
        and 0 <= epoch <= MAX_EPOCH
        and type(reason) is str
        and shortened(reason) == reason
        and type(always) is bool
    )


def _mismatch(saved: Any, present: str) -> StateMismatch:
    return StateMismatch("bad_samples", saved=saved, present=present, remedy=REMEDY_FOREIGN)
