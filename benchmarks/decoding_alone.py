"""The ceiling of the throughput benchmark: read and decode in threads, and do nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

_RGB = 3


def seconds_to_decode(
    files: Sequence[str], decode: Callable[[torch.Tensor], Any], *, num_threads: int
) -> float:
    """Wall time to read and decode all files, each thread taking the next one."""
    rest = iter(files)
    lock = threading.Lock()

    def read_and_decode() -> None:
        while True:
            with lock:
                file = next(rest, None)
            if file is None:
                return
            decode(torch.from_numpy(np.fromfile(file, dtype=np.uint8)))

    threads = [threading.Thread(target=read_and_decode) for _ in range(num_threads)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def operator_of(decoder: str) -> Callable[[torch.Tensor], Any]:
    """The registered operator, uint8 [num_bytes] to uint8 [3, H, W], without any Python around."""
    if decoder == "torchcodec":
        import torchcodec  # noqa: F401  (registers the operator)

        operator = torch.ops.torchcodec_ns.decode_jpeg.default
    else:
        import torchvision  # noqa: F401  (registers the operator)

        operator = torch.ops.image.decode_jpeg.default
    return lambda data: operator(data, _RGB)
