"""Calls of CUDA's driver, simulated; no calls where it is missing."""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stateful_gpu_loader.decoders import cuda_driver
from stateful_gpu_loader.decoders.cuda_driver import beside_captures, keep_freed_memory, new_stream
from stateful_gpu_loader.engine.device.place import CudaPlace

GLOBAL, RELAXED = 0, 2


class PlayedDriver:
    """Keeps the capture mode of each thread, as the driver does."""

    def __init__(self) -> None:
        self.modes = threading.local()
        self.status = 0
        self.thresholds: list[tuple[int, int, int]] = []

    @property
    def mode(self) -> int:
        return getattr(self.modes, "mode", GLOBAL)

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:  # noqa: N802
        if not self.status:
            before = self.mode
            self.modes.mode, mode._obj.value = mode._obj.value, before
        return self.status

    def cuDeviceGetDefaultMemPool(self, pool: Any, device: int) -> int:  # noqa: N802
        pool._obj.value = 1000 + device
        return self.status

    def cuMemPoolGetAttribute(self, pool: Any, name: int, value: Any) -> int:  # noqa: N802
        for found, named, threshold in self.thresholds:
            if (found, named) == (pool.value, name):
                value._obj.value = threshold
        return 0

    def cuMemPoolSetAttribute(self, pool: Any, name: int, value: Any) -> int:  # noqa: N802
        self.thresholds.append((pool.value, name, value._obj.value))
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> PlayedDriver:
    played = PlayedDriver()
    monkeypatch.setattr(cuda_driver, "_driver", lambda: played)
    return played


def test_a_threads_mode_is_relaxed_and_put_back(driver: PlayedDriver) -> None:
    """Before CUDA has begun nothing is exchanged."""
    with suppress(KeyError), beside_captures():
        assert driver.mode == RELAXED
        with beside_captures():
            assert driver.mode == RELAXED
        assert driver.mode == RELAXED
        raise KeyError
    assert driver.mode == GLOBAL
    driver.status = 3
    with beside_captures():
        driver.status = 0
    assert driver.mode == GLOBAL


def test_without_a_driver_no_stream_is_created_and_nothing_else_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    cuda_driver._driver.cache_clear()
    try:
        with beside_captures():
            keep_freed_memory(0, 2**28)
        with pytest.raises(RuntimeError, match=r"libcuda\.so\.1, cannot be loaded"):
            new_stream(0)
    finally:
        cuda_driver._driver.cache_clear()


def test_the_pools_threshold_is_set_unless_it_keeps_more_already(driver: PlayedDriver) -> None:
    """Another loader or library of the process may need the memory."""
    for num_bytes in (2**28, 2**27, 2**28, 2**29):
        keep_freed_memory(1, num_bytes)
    assert driver.thresholds == [(1001, 4, 2**28), (1001, 4, 2**29)]
    driver.status = 1
    keep_freed_memory(1, 2**30)
    assert len(driver.thresholds) == 2


def test_a_driver_without_the_call_is_named(driver: PlayedDriver) -> None:
    with pytest.raises(RuntimeError, match=r"libcuda\.so\.1, has no cuInit"):
        new_stream(0)


class StreamDriver:
    """Creates a stream where a context is current, and keeps a stack of contexts."""

    def __init__(self) -> None:
        self.contexts: list[int] = []
        self.status = 0

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return 0

    def cuDeviceGet(self, found: Any, index: int) -> int:  # noqa: N802
        found._obj.value = index
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:  # noqa: N802
        context._obj.value = 100 + device.value
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:  # noqa: N802
        self.contexts.append(context.value)
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:  # noqa: N802
        context._obj.value = self.contexts.pop()
        return 0

    def cuStreamCreate(self, stream: Any, flags: int) -> int:  # noqa: N802
        assert flags == 1, "the default stream would be waited for"
        stream._obj.value = 16 * self.contexts[-1]
        return self.status


def test_a_stream_is_created_in_the_context_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    played = StreamDriver()
    monkeypatch.setattr(cuda_driver, "_driver", lambda: played)
    assert new_stream(1) == 16 * 101
    assert played.contexts == []
    played.status = 2
    with pytest.raises(RuntimeError, match="cuStreamCreate of CUDA's driver failed with status 2"):
        new_stream(1)
    assert played.contexts == []


def test_whatever_allocates_for_a_place_does_it_beside_captures(
    driver: PlayedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the stage's thread, and in the readers' threads for memory that the device copies from."""
    place: Any = CudaPlace(torch.device("cuda", 0))
    place._streams = [SimpleNamespace(device=torch.device("cuda", 0))] * 2
    modes: list[int] = []

    class Noted:
        def __init__(self, _: Any) -> None: ...

        def __enter__(self) -> None:
            modes.append(driver.mode)

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(torch.cuda, "device", Noted)
    monkeypatch.setattr(torch.cuda, "stream", Noted)
    with place.working(1):
        modes.append(driver.mode)
    place.empty_host((2,), torch.uint8)
    assert modes == [RELAXED] * 4
    assert driver.mode == GLOBAL
