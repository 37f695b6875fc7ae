"""Report: what ``verify_resume`` has compared, what differs, and why that is likely so."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.tools.differences import Difference

Outcome = Literal["exact", "differs", "skipped", "could not run"]


class VerifyError(LoaderError):
    """The question cannot be answered: the loader cannot be built, or a process not be started."""


class ResumeDiffers(LoaderError, AssertionError):
    """A resumed loader delivers something else; the message is the whole report."""


@dataclass(frozen=True)
class Check:
    """One comparison with the undisturbed run."""

    name: str
    """How the loader was resumed, such as "2 processes"."""
    place: str
    """After which batch the state was saved."""
    outcome: Outcome
    difference: str | None = None
    """The first difference in a sentence, if any."""
    reason: str | None = None
    """Why it was skipped, or could not run."""


@dataclass(frozen=True)
class DifferentSample:
    """The first sample that differs."""

    check: str
    """The check in which it differs."""
    batch: int
    """Number of its batch in the undisturbed run, from 0."""
    place_in_batch: int | None
    """Number of the sample in its batch; None if samples cannot be told apart in the batch."""
    position: int | None
    """Position in the epoch's order, all ranks together; None if it is not known."""
    index: str | None
    """Index in the dataset; None if it is not known."""
    fields: tuple[Difference, ...]
    """The fields that differ."""

    def __str__(self) -> str:
        sample = "" if self.place_in_batch is None else f"sample {self.place_in_batch} of "
        position = "unknown" if self.position is None else self.position
        first = f"{sample}batch {self.batch}: position {position}, index {self.index or 'unknown'}"
        return "\n".join([first, *(f"  {each}" for each in self.fields)])


@dataclass(frozen=True)
class Cause:
    """What is likely the cause of a difference, and what was seen that says so."""

    kind: str
    """A few words, such as "the clock"; "unknown" if nothing explains the difference."""
    what: str
    """What is likely wrong."""
    observed: tuple[str, ...]
    """What was observed when the sample was made again."""
    remedy: str

    def __str__(self) -> str:
        seen = "".join(f"\n  observed: {each}" for each in self.observed)
        return f"{self.what}{seen}\n  remedy: {self.remedy}"


@dataclass(frozen=True)
class Report:
    """Result of all comparisons: true if nothing differs. ``bool`` raises if a check could not run.

    >>> report = Report("a loader", 3, (Check("same workers", "batch 1", "exact"),))
    >>> bool(report), report.check() is report
    (True, True)
    >>> print(report)
    a loader: 3 batches
    exact    same workers, after batch 1
    Exact: 1 check, nothing differs.
    """

    loader: str
    """What was verified, in words."""
    batches: int
    """Number of batches of the undisturbed run."""
    checks: tuple[Check, ...]
    sample: DifferentSample | None = None
    """The first sample that differs, if any."""
    cause: Cause | None = None
    """The likely cause, if anything differs."""
    notes: tuple[str, ...] = ()
    """What the reader should know about the loader, such as its own warnings."""

    @property
    def is_exact(self) -> bool | None:
        """Whether no check differs; None if none does, but some could not run."""
        outcomes = {check.outcome for check in self.checks}
        if "differs" in outcomes:
            return False
        return None if "could not run" in outcomes else True

    def __bool__(self) -> bool:
        if self.is_exact is None:
            raise VerifyError(str(self))
        return self.is_exact

    @property
    def verdict(self) -> str:
        """The outcome in a sentence."""
        count = Counter(check.outcome for check in self.checks)
        compared, failed = count["exact"] + count["differs"], count["could not run"]
        rest = f" {count['skipped']} skipped." if count["skipped"] else ""
        number = f"{compared} check{'s' * (compared != 1)}"
        if self.is_exact:
            return f"Exact: {number}, nothing differs.{rest}"
        if self.is_exact is None:
            return f"Could not run: {failed} of {compared + failed} checks; nothing differs.{rest}"
        rest = f" {failed} could not run.{rest}" if failed else rest
        return f"Not exact: {count['differs']} of {number} differ.{rest}"

    @property
    def findings(self) -> str:
        """The first sample that differs and the likely cause; "" if nothing differs."""
        first = "" if self.sample is None else f"First difference, {self.sample}\n"
        return first + ("" if self.cause is None else f"Cause: {self.cause}")

    def check(self) -> Report:
        """Return the report itself if nothing differs.

        Raises:
            ResumeDiffers: something differs; it is an AssertionError, and its text is the report.
            VerifyError: a check could not run; its text is the report.
        """
        if not self:
            raise ResumeDiffers(str(self))
        return self

    def __str__(self) -> str:
        lines = [
            f"{self.loader}: {self.batches} batches",
            *(f"Note: {each}" for each in self.notes),
        ]
        for check in self.checks:
            more = check.difference or check.reason
            tail = f": {more}" if more else ""
            lines.append(f"{check.outcome:8} {check.name}, after {check.place}{tail}")
        return "\n".join([*lines, *filter(None, [self.findings]), self.verdict])
