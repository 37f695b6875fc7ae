"""Report of ``verify_resume``: the checks, the first difference, and its likely cause."""

from __future__ import annotations

import html
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.tools.differences import Difference

Outcome = Literal["exact", "differs", "skipped", "could not run"]


class VerifyError(LoaderError):
    """The loader could not be verified: it cannot be built, or a process cannot be started."""


class ResumeDiffers(LoaderError, AssertionError):
    """A resumed loader delivers other batches; the message is the whole report."""


@dataclass(frozen=True)
class Check:
    """One comparison with the undisturbed run."""

    name: str
    """How the loader was resumed, such as "2 processes"."""
    place: str
    """Batch after which the state was saved."""
    outcome: Outcome
    difference: str | None = None
    """First difference in a sentence, if any."""
    reason: str | None = None
    """Why the check was skipped, or could not run."""


@dataclass(frozen=True)
class DifferentSample:
    """First sample that differs."""

    check: str
    """Check in which the sample differs."""
    batch: int
    """Number of its batch in the undisturbed run, counted from 0."""
    place_in_batch: int | None
    """Number of the sample in its batch; None if the batch cannot be divided."""
    position: int | None
    """Position in the epoch's order, all ranks together, if known."""
    index: str | None
    """Index in the dataset, if known."""
    fields: tuple[Difference, ...]

    def __str__(self) -> str:
        sample = "" if self.place_in_batch is None else f"sample {self.place_in_batch} of "
        position = "unknown" if self.position is None else self.position
        first = f"{sample}batch {self.batch}: position {position}, index {self.index or 'unknown'}"
        return "\n".join([first, *(f"  {each}" for each in self.fields)])


@dataclass(frozen=True)
class Cause:
    """Likely cause of a difference, and the observations that support it."""

    kind: str
    """A few words, such as "the clock"; "unknown" if nothing explains the difference."""
    what: str
    observed: tuple[str, ...]
    """Observations made when the sample was made again."""
    remedy: str

    def __str__(self) -> str:
        seen = "".join(f"\n  observed: {each}" for each in self.observed)
        return f"{self.what}{seen}\n  remedy: {self.remedy}"


@dataclass(frozen=True, repr=False)
class Report:
    """Result of all comparisons: true if nothing differs. ``bool`` raises if a check could not run.

    >>> report = Report("a loader", 3, (Check("same workers", "batch 1", "exact"),))
    >>> bool(report), report.check() is report
    (True, True)
    >>> print(report)
    a loader: 3 batches
    exact    same workers, after batch 1
    Exact: 1 check, nothing differs.
    >>> report
    <Report of a loader, 3 batches: Exact: 1 check, nothing differs.>
    """

    loader: str
    batches: int
    """Number of batches of the undisturbed run."""
    checks: tuple[Check, ...]
    sample: DifferentSample | None = None
    """First sample that differs, if any."""
    cause: Cause | None = None
    """Likely cause, if anything differs."""
    notes: tuple[str, ...] = ()
    """Notes on the loader, such as its own warnings."""

    @property
    def is_exact(self) -> bool | None:
        """Whether all checks are exact; None if none differs, but some could not run."""
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
        """Outcome in a sentence."""
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
        """First sample that differs and the likely cause; "" if nothing differs."""
        first = "" if self.sample is None else f"First difference, {self.sample}\n"
        return first + ("" if self.cause is None else f"Cause: {self.cause}")

    def check(self) -> Report:
        """Return the report itself if nothing differs.

        Raises:
            ResumeDiffers: something differs; it is an AssertionError whose text is the report.
            VerifyError: a check could not run; its text is the report.
        """
        if not self:
            raise ResumeDiffers(str(self))
        return self

    def __repr__(self) -> str:
        return f"<Report of {self.loader}, {self.batches} batches: {self.verdict}>"

    def _repr_html_(self) -> str:
        """Return a table of the checks, and the findings, for notebooks."""
        rows = ""
        for check in self.checks:
            more = check.difference or check.reason or ""
            cells = check.outcome, f"{check.name}, after {check.place}", more
            rows += f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>"
        notes = "".join(f"<p>Note: {html.escape(each)}</p>" for each in self.notes)
        found = f"<pre>{html.escape(self.findings)}</pre>" if self.findings else ""
        head = f"<p>{html.escape(self.loader)}, {self.batches} batches</p>{notes}"
        verdict = f"<p><b>{html.escape(self.verdict)}</b></p>"
        return f"{head}{verdict}<table>{rows}</table>{found}"

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
