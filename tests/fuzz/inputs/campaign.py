"""Reads the inputs of one kind by their numbers, and shrinks findings."""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.inputs.children import Note, in_child
from tests.fuzz.inputs.drawn import Input, Outcome, outcome_of
from tests.fuzz.inputs.kind import Kind

MakeKind = Callable[[Path], Kind]
MOST_CPU_SECONDS = 5.0
"""Processor time allowed for one input."""
_IN_ONE_CHILD = 5000
_SHRINKING_SECONDS = 20.0


@dataclass(frozen=True)
class Finding:
    """An input that broke the contract."""

    number: int
    outcome: Outcome


@dataclass
class Tally:
    """Results of many inputs of one kind."""

    read: int = 0
    refused: int = 0
    findings: list[Finding] = field(default_factory=list)
    """The first finding of each fault."""
    faults: Counter[str] = field(default_factory=Counter)
    """Number of findings of each fault."""

    def add(self, finding: Finding) -> None:
        """Count a finding."""
        fault = finding.outcome.fault or ""
        if fault not in self.faults:
            self.findings.append(finding)
        self.faults[fault] += 1

    def merge(self, other: Tally) -> None:
        """Add the counts of another tally."""
        self.read, self.refused = self.read + other.read, self.refused + other.refused
        self.findings += [one for one in other.findings if one.outcome.fault not in self.faults]
        self.faults += other.faults

    def __str__(self) -> str:
        return f"{self.read:8} inputs, {self.refused:8} refused, {len(self.faults):3} faults"


def read_inputs(make: MakeKind, seed: int, numbers: Sequence[int]) -> Tally:
    """Read inputs in children. Each child continues after the input that ended the previous one."""
    tally = Tally()
    while tally.read < len(numbers):
        part = numbers[tally.read : tally.read + _IN_ONE_CHILD]
        ended = in_child(lambda folder, note, part=part: _read(make(folder), seed, part, note))
        if ended.death is None:
            tally.merge(ended.value)
            continue
        # A dead child's findings are lost, so the inputs up to the fatal one are read again.
        if ended.place:
            tally.merge(read_inputs(make, seed, part[: ended.place]))
        tally.add(Finding(part[ended.place], Outcome(fault=ended.death, details=ended.said)))
        tally.read += 1
    return tally


def _read(kind: Kind, seed: int, numbers: Sequence[int], note: Note) -> Tally:
    tally = Tally()
    for place, number in enumerate(numbers):
        note(place)
        outcome = observed(kind, Input.of(kind, seed, number))
        tally.read += 1
        tally.refused += outcome.is_refused
        if outcome.fault is not None:
            tally.add(Finding(number, outcome))
    return tally


def observed(kind: Kind, drawn: Input) -> Outcome:
    """Read an input; check its cost and its output."""
    return observed_content(kind, drawn.content(kind), drawn)


def observed_content(kind: Kind, content: Any, drawn: Input) -> Outcome:
    """Read a content made of an input; check its cost and its output."""
    said, peak, began = _said(), _peak(), time.process_time()
    outcome = outcome_of(kind, content, drawn.example, is_changed=bool(drawn.steps))
    if outcome.fault is not None:
        return outcome
    if (seconds := time.process_time() - began) > MOST_CPU_SECONDS:
        return Outcome(fault="takes long", details=f"{seconds:.1f} s of processor time")
    if (grown := _peak() - peak) > kind.memory:
        return Outcome(fault="takes much memory", details=f"{grown / 2**20:.0f} MiB")
    if _said() > said and not kind.writes:
        text = os.pread(2, 2000, said).decode(errors="replace")
        return Outcome(fault="writes to the standard error", details=text)
    return outcome


def shrunk(make: MakeKind, seed: int, number: int, fault: str) -> tuple[Input, str]:
    """Return the fewest changes, then the fewest bytes, with the same fault; and both as text."""
    ended = in_child(lambda folder, note: _shrunk(make(folder), seed, number, fault, note))
    if ended.death is None:
        found: tuple[Input, str] = ended.value
        return found
    # The input ends the process: one child for each attempt.
    drawn, content = in_child(lambda folder, note: _made(make(folder), seed, number, None)).value
    is_shorter = True
    while is_shorter:
        is_shorter = False
        for other in drawn.shorter():
            task = lambda folder, note, other=other: _read_one(make(folder), other, note)  # noqa: E731
            if in_child(task).death == fault:
                drawn, is_shorter = other, True
                content = in_child(
                    lambda folder, note, other=other: _made(make(folder), seed, number, other)
                ).value[1]
                break
    return drawn, content


def _made(kind: Kind, seed: int, number: int, drawn: Input | None) -> tuple[Input, str]:
    drawn = drawn or Input.of(kind, seed, number)
    return drawn, _brief(drawn.content(kind))


def _read_one(kind: Kind, drawn: Input, note: Note) -> Outcome:
    note(0)
    return observed(kind, drawn)


def _shrunk(kind: Kind, seed: int, number: int, fault: str, note: Note) -> tuple[Input, str]:
    until = time.monotonic() + _SHRINKING_SECONDS
    drawn, attempts = Input.of(kind, seed, number), 0

    def has_fault(content: Any) -> bool:
        nonlocal attempts
        note(attempts := attempts + 1)
        return observed_content(kind, content, drawn).fault == fault

    is_shorter = True
    while is_shorter:
        is_shorter = False
        for other in drawn.shorter():
            if has_fault(other.content(kind)):
                drawn, is_shorter = other, True
                break
    content = drawn.content(kind)
    if isinstance(content, bytes):
        size = max(1, len(content) // 2)
        while size and time.monotonic() < until:
            at, before = 0, len(content)
            while at < len(content) and time.monotonic() < until:
                less = content[:at] + content[at + size :]
                if has_fault(less):
                    content = less
                else:
                    at += size
            size = size if len(content) < before and size > 1 else size // 2
    return drawn, _brief(content)


def _brief(content: Any) -> str:
    try:
        text = repr(content)
    except RecursionError:
        text = "nested too deeply to be shown"
    return text if len(text) <= 2000 else f"{text[:2000]}... ({len(text)} characters)"


def _said() -> int:
    return os.fstat(2).st_size


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
