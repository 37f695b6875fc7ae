"""However a loop ends, it leaves no memory, no threads and no hanging process."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from tests.conformance import same, uninterrupted
from tests.gpu.leaving_early import HOW
from tests.gpu.photos import make_loader

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]

WARM_UP = 2
"""Passes before memory is compared: libraries and kernels keep memory from their first use."""

_SECONDS_TO_END = 45


def _allocated() -> int:
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


@pytest.mark.parametrize("how", ["to the end", "break", "exception", "never begun"])
def test_memory_and_threads_are_as_before(photos: Path, backend: str, how: str) -> None:
    found = []
    for number in range(WARM_UP + 2):
        loader = make_loader(photos, decoder=backend, num_workers=2, prefetch_factor=4)
        batches = iter(loader)
        try:
            if how != "never begun":
                for _ in batches:
                    if how == "break":
                        break
                    if how == "exception":
                        raise KeyError("the user's own")
        except KeyError:
            pass
        del loader, batches
        if number >= WARM_UP - 1:
            found.append((_allocated(), _num_threads_of_ours()))
    assert found[1:] == found[:1] * (len(found) - 1)
    assert found[-1][1] == 0


def test_the_next_pass_after_a_break_has_no_stale_batch(photos: Path, backend: str) -> None:
    expected, _ = uninterrupted(make_loader(photos, decoder=backend), 3)
    loader = make_loader(photos, decoder=backend, num_workers=2, prefetch_factor=4)
    for _ in loader:
        break
    loader.set_epoch(1)
    second = list(loader)
    assert same([list(batch) for batch in second], expected[1])
    for number, batch in enumerate(loader):
        assert same(list(batch), expected[2][number])


@pytest.fixture(scope="module")
def ended(photos: Path) -> dict[str, tuple[int, str, str]]:
    """Exit code, output and errors for each way to end. The programs run in parallel."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.gpu.leaving_early", str(photos)]
    running = {
        how: subprocess.Popen(
            [*command, how], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for how in HOW
    }
    found = {}
    for how, program in running.items():
        try:
            output, errors = program.communicate(timeout=_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            program.kill()
            output, errors = program.communicate()
        found[how] = program.returncode, output, errors
    return found


@pytest.mark.parametrize(("how", "codes"), HOW.items())
def test_the_interpreter_ends_in_the_middle_of_an_epoch(
    ended: dict[str, tuple[int, str, str]], how: str, codes: tuple[int, ...]
) -> None:
    code, output, errors = ended[how]
    assert code in codes, errors
    assert output == "one batch\n"
    assert "Fatal Python error" not in errors
    assert "terminate called" not in errors
    if codes == (0,):
        assert "Exception" not in errors
        assert "Traceback" not in errors


def _num_threads_of_ours() -> int:
    return sum("stateful_gpu_loader" in thread.name for thread in threading.enumerate())
