"""A few inputs of every kind, and planted faults that must be found; docs/robustness.md."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz.inputs import campaign, children
from tests.fuzz.inputs.campaign import read_inputs, shrunk
from tests.fuzz.inputs.kind import MIB, Broken, Kind
from tests.fuzz.inputs.kinds import KINDS

INPUTS = int(os.environ.get("FUZZ_INPUTS", "120"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
NEVER_REFUSED = {"checkpoint, folder", "kept index"}
"""Kinds that read another file in place of a damaged one, or build it again."""


@pytest.mark.parametrize("name", KINDS)
def test_damaged_inputs_are_read_or_refused_by_name(name: str) -> None:
    """Reads FUZZ_INPUTS of each kind, with the seed FUZZ_SEED."""
    tally = read_inputs(KINDS[name], SEED, range(INPUTS))
    assert tally.read == INPUTS
    assert tally.refused or name in NEVER_REFUSED, "nothing was damaged"
    for finding in tally.findings:
        drawn, content = shrunk(KINDS[name], SEED, finding.number, finding.outcome.fault or "")
        pytest.fail(
            f"python -m tests.fuzz.inputs --kinds {name!r} --seed {SEED} --input {finding.number}\n"
            f"{drawn}\n{content}\n{finding.outcome}"
        )


class Planted(Kind):
    """Refuses all but its example, and fails where a byte is 0x80 or more."""

    name = "planted"
    memory = 16 * MIB

    def __init__(self, folder: Path, go_wrong: Callable[[], object]) -> None:
        super().__init__(folder)
        self.examples = [b"first example", b"another one"]
        self._go_wrong = go_wrong

    def read(self, content: bytes, example: int) -> None:
        if any(byte >= 0x80 for byte in content):
            self._go_wrong()
        if content != self.examples[example]:
            raise ValueError("damaged. Remedy: fetch it anew")


def _no_refusal() -> None:
    raise KeyError("key")


def _no_remedy() -> None:
    raise ValueError("damaged")


def _silence() -> None:
    raise Broken("another value was read")


def _no_text() -> None:
    raise ValueError("\ud800. Remedy: none")


def _endless() -> None:
    while True:
        pass


FAULTS: dict[Callable[[], object], str] = {
    _no_refusal: "KeyError is no refusal",
    _no_remedy: "names no remedy",
    _silence: "another value was read",
    _no_text: "has a text that raises UnicodeEncodeError",
    lambda: warnings.warn("deprecated", DeprecationWarning, stacklevel=1): "DeprecationWarning",
    lambda: sys.setrecursionlimit(1): "RecursionError",
    lambda: os.write(2, b"complaint"): "writes to the standard error",
    lambda: bytearray(48 * MIB): "takes much memory",
    lambda: bytearray(1 << 40): "MemoryError",
    os.abort: "ends the process (-6)",
    _endless: "does not come to an end",
}


@pytest.mark.parametrize("go_wrong", FAULTS)
def test_a_planted_fault_is_found_and_shrunk(
    go_wrong: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    if go_wrong is _endless:
        monkeypatch.setattr(children, "MOST_SECONDS", 0.1)

    def make(folder: Path) -> Kind:
        return Planted(folder, go_wrong)

    tally = read_inputs(make, 0, range(40))
    assert tally.read == 40
    first = tally.findings[0]
    assert FAULTS[go_wrong] in (first.outcome.fault or "")
    drawn, content = shrunk(make, 0, first.number, first.outcome.fault or "")
    assert len(drawn.steps) == 1
    if go_wrong is _no_refusal:
        assert len(eval(content)) == 1, "one byte goes wrong"


def test_what_refuses_a_sound_example_is_found() -> None:
    class Refusing(Planted):
        def read(self, content: bytes, example: int) -> None:
            raise ValueError("damaged. Remedy: none")

    tally = read_inputs(lambda folder: Refusing(folder, _silence), 0, range(200))
    assert [finding.outcome.fault for finding in tally.findings] != []
    assert all("refuses a valid example" in fault for fault in tally.faults)


def test_the_same_inputs_are_made_in_another_process() -> None:
    """A seed and a number determine an input, so that a finding can be repeated."""
    task: Callable[[Path, children.Note], list[object]] = lambda folder, note: [  # noqa: E731
        campaign.Input.of(KINDS["tar member"](folder), 7, number) for number in range(20)
    ]
    assert children.in_child(task).value == children.in_child(task).value
