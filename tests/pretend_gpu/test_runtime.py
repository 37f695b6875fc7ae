"""The pretend GPU itself: late, in order, and as strict as a real one."""

from __future__ import annotations

import os

import pytest
import torch


def late_copy(stream: torch.cuda.Stream, source: torch.Tensor) -> torch.Tensor:
    """Queue a copy of a tensor to the host."""
    target = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
    with torch.cuda.stream(stream):
        target.copy_(source, non_blocking=True)
    return target


def test_queued_work_runs_late_and_in_order() -> None:
    stream = torch.cuda.Stream()
    numbers = torch.arange(200, dtype=torch.int32).view(200, 1).pin_memory()
    with torch.cuda.stream(stream):
        place = torch.empty(1, dtype=torch.int32, device="cuda")
        found = []
        for number in numbers:
            place.copy_(number, non_blocking=True)
            found.append(late_copy(stream, place))
        assert not stream.query()
    stream.synchronize()
    assert torch.equal(torch.cat(found), numbers.flatten())


def test_an_event_orders_two_streams() -> None:
    writer, reader = torch.cuda.Stream(), torch.cuda.Stream()
    numbers = torch.arange(100, dtype=torch.int32).view(100, 1).pin_memory()
    places = torch.empty_like(numbers, device="cuda")
    found = []
    for number, place in zip(numbers, places, strict=True):
        with torch.cuda.stream(writer):
            place.copy_(number, non_blocking=True)
        reader.wait_event(writer.record_event())
        found.append(late_copy(reader, place))
    reader.synchronize()
    assert torch.equal(torch.cat(found), numbers.flatten())


def test_memory_is_full_at_the_given_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRETEND_GPU_MEGABYTES", "64")
    assert torch.cuda.mem_get_info() == (2**26, 2**26)
    held = torch.empty(2**25, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.empty(2**26, dtype=torch.uint8, device="cuda")
    del held
    torch.empty(2**26, dtype=torch.uint8, device="cuda")


def test_an_event_belongs_to_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRETEND_GPU_COUNT", "2")
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(0))
    with pytest.raises(RuntimeError):
        event.record(torch.cuda.current_stream(1))


def test_a_forked_process_cannot_use_it() -> None:
    torch.ones(1, device="cuda")
    child = os.fork()
    if not child:
        try:
            torch.ones(1, device="cuda")
        except RuntimeError:
            os._exit(3)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
