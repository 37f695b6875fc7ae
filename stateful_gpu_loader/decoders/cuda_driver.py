"""Calls of the CUDA driver that torch does not offer."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

_NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: the stream does not wait for the default stream."""
_RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED."""
_RELEASE_THRESHOLD = 4
"""CU_MEMPOOL_ATTR_RELEASE_THRESHOLD."""


@contextmanager
def beside_captures() -> Iterator[None]:
    """Let this thread allocate while another thread captures a CUDA graph.

    ``torch.cuda.graph`` captures in global mode: an allocation by any thread breaks the capture,
    unless that thread's own mode is relaxed. Threads of nvImageCodec and DALI are not covered.
    Without a driver this does nothing.

    >>> with beside_captures():
    ...     pass
    """
    driver, mode = _driver(), ctypes.c_int(_RELAXED)
    # The call swaps ``mode`` with the thread's, or fails harmlessly before CUDA is initialized.
    is_relaxed = driver is not None and not _exchanged(driver, mode)
    try:
        yield
    finally:
        if is_relaxed:
            _exchanged(driver, mode)


def keep_freed_memory(device: int, num_bytes: int) -> None:
    """Let a GPU's default memory pool keep at least ``num_bytes`` of the memory freed to it.

    Otherwise each synchronisation returns it to the system, and the next ``cudaMallocAsync`` maps
    it again. Without a driver this does nothing.

    Args:
        device: index of a GPU on which CUDA is initialized.
        num_bytes: number of bytes that the pool keeps. torch's own allocator cannot use them.
    """
    driver, pool = _driver(), ctypes.c_void_p()
    if driver is None or driver.cuDeviceGetDefaultMemPool(ctypes.byref(pool), device):
        return
    threshold = ctypes.c_uint64()
    driver.cuMemPoolGetAttribute(pool, _RELEASE_THRESHOLD, ctypes.byref(threshold))
    if threshold.value < num_bytes:
        threshold.value = num_bytes
        driver.cuMemPoolSetAttribute(pool, _RELEASE_THRESHOLD, ctypes.byref(threshold))


def new_stream(device: int) -> int:
    """Create a stream outside torch's pool, and return its handle.

    The stream has the default priority, does not wait for the default stream, and is never
    destroyed.

    Args:
        device: index of a GPU.

    Raises:
        RuntimeError: the driver is missing, lacks a call, or reports an error.
    """
    ordinal, context, stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    _call("cuInit", 0)
    _call("cuDeviceGet", ctypes.byref(ordinal), device)
    # torch's context, created here if necessary.
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
    _call("cuCtxPushCurrent_v2", context)
    try:
        _call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
    finally:
        _call("cuCtxPopCurrent_v2", ctypes.byref(context))
    return stream.value or 0


def _call(name: str, *arguments: Any) -> None:
    """Call the driver.

    Raises:
        RuntimeError: the driver is missing, lacks the call, or reports an error.
    """
    driver = _driver()
    if driver is None:
        raise RuntimeError("CUDA's driver, libcuda.so.1, cannot be loaded")
    function = getattr(driver, name, None)
    if function is None:
        raise RuntimeError(f"CUDA's driver, libcuda.so.1, has no {name}")
    if status := function(*arguments):
        raise RuntimeError(f"{name} of CUDA's driver failed with status {status}")


def _exchanged(driver: Any, mode: ctypes.c_int) -> int:
    """Return the driver's status: 0 is success."""
    return int(driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)))


@lru_cache(maxsize=1)
def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
