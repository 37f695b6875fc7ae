"""Random lives of random loaders; docs/robustness.md."""

from __future__ import annotations

import os

import pytest

from tests.fuzz.cases import Case

SEED = int(os.environ.get("FUZZ_SEED", "0"))
CASES = int(os.environ.get("FUZZ_CASES", "400"))
IN_ONE_TEST = 5


@pytest.mark.fuzz
@pytest.mark.parametrize("first", range(0, CASES, IN_ONE_TEST))
def test_random_lives_are_those_of_an_undisturbed_run(first: int) -> None:
    """Plays FUZZ_CASES lives, with the seed FUZZ_SEED."""
    for number in range(first, min(first + IN_ONE_TEST, CASES)):
        case = Case.drawn(SEED, number)
        failure = case.play()
        if failure is not None:
            case, failure = case.shrunk(failure)
            pytest.fail(f"python -m tests.fuzz --seed {SEED} --case {number}\n{case}\n{failure}")
