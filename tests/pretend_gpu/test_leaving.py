"""Breaks, forks, interrupts and exits in the middle of a pass change no batch and never hang."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stateful_gpu_loader import StatefulGPULoader
from tests.datasets.storage.processes import in_a_fork
from tests.loader.test_exits import ODDER_WAYS, WAYS, check_exit
from tests.loader.test_interrupts import assert_whole
from tests.prepared_processes import run_until_exit
from tests.pretend_gpu.loaders import (
    Count,
    EagerDecoder,
    LateReader,
    decoder,
    expected_batches,
    make,
    photos,
    played_kernels,
)

__all__ = ["decoder", "photos"]


@pytest.mark.parametrize("prefetch_factor", [1, 4])
def test_sixty_breaks_leave_no_stale_batch(
    photos: Path, decoder: EagerDecoder, count: Count, prefetch_factor: int
) -> None:
    loader = make(photos, prefetch_factor=prefetch_factor)
    start = loader.state_dict()
    reader, first, expected = LateReader(torch.cuda.Stream()), expected_batches(photos), []
    for number in range(60):
        loader.load_state_dict(start)
        batches = iter(loader)
        reader.read(batches, number % 4)
        expected += first[: number % 4]
        del batches
    loader.load_state_dict(start)
    reader.read(iter(loader))
    wrong = reader.wrong(expected + first)
    count("batches around breaks", len(expected + first), wrong)
    assert wrong == 0


def test_forks_beside_a_stage_at_work(photos: Path, decoder: EagerDecoder, count: Count) -> None:
    """Each child drops its copy of the loader, whose streams are its parent's."""
    loader = make(photos, prefetch_factor=4)
    reader, batches = LateReader(), iter(loader)

    def drop() -> bool:
        nonlocal loader, batches
        del loader, batches
        gc.collect()
        return True

    for _ in range(8):
        reader.read(batches, 1)
        assert in_a_fork(drop) == 0
    reader.read(batches)
    wrong = reader.wrong(expected_batches(photos))
    count("batches around forks", 12, wrong)
    assert wrong == 0


def test_a_forked_child_drops_a_delivered_batch(photos: Path, decoder: EagerDecoder) -> None:
    """To free its memory, torch would call CUDA, which aborts a forked process."""
    batches = iter(make(photos))
    batch = next(batches)

    def drop() -> bool:
        nonlocal batch, batches
        del batch, batches
        gc.collect()
        return True

    assert in_a_fork(drop) == 0
    assert torch.equal(batch[0].cpu(), expected_batches(photos)[0][0])


class OnCpu:
    """A loader whose batches are copied to the CPU for comparison."""

    def __init__(self, loader: StatefulGPULoader[Any]) -> None:
        self._loader = loader
        self.state_dict = loader.state_dict
        self.load_state_dict = loader.load_state_dict

    def __iter__(self) -> Iterator[Any]:
        return map(_on_cpu, iter(self._loader))


def _on_cpu(batch: list[torch.Tensor]) -> list[torch.Tensor]:
    return [part.cpu() for part in batch]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("at", [0, 5])
def test_an_interrupt_inside_next_loses_and_shifts_no_sample(
    photos: Path, decoder: EagerDecoder, at: int
) -> None:
    def make_on_cpu() -> Any:
        return OnCpu(make(photos, batch_size=8))

    assert_whole(make_on_cpu, at=at, most=12, turn=at)


def exiting_loader(root: str) -> StatefulGPULoader[Any]:
    """Return, in a script, a loader on the pretend GPU."""
    vars(exiting_loader)["kernels"] = kernels = played_kernels()
    kernels.__enter__()
    return make(Path(root), batch_size=2)


LATE_WAYS = (
    "in a cycle",
    "held by a module that is taken apart late",
    "in a thread",
    "in a function of atexit",
)
"""Ways to exit that leave the batches in flight to the interpreter's last steps."""


@pytest.mark.parametrize("ways", [tuple(WAYS), LATE_WAYS], ids=["usual", "late"])
def test_ways_to_exit(photos: Path, ways: tuple[str, ...]) -> None:
    for way in ways:
        rest = {**WAYS, **ODDER_WAYS}[way]
        script = (
            "import gc; gc.unfreeze()\n"
            "from tests.pretend_gpu.test_leaving import exiting_loader\n"
            f"loader = exiting_loader({str(photos)!r})\n{rest}"
        )
        check_exit(way, *run_until_exit(script, multiprocessing.get_context("fork")))
