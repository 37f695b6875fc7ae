"""The loader's readers without anything else: files to bytes, headers and draws, in threads.

Python's lock lets only one of them run at a time, except in system calls. So the rate of many
threads is limited to one image per Python time of an image.
"""

from __future__ import annotations

import time

import torch

from benchmarks.execution_paths import requests_of, seconds_to_execute
from benchmarks.photograph_loaders import folder_source
from benchmarks.photographs import PhotographFolder
from stateful_gpu_loader.decoders import make_decoder
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.makers.encoded import EncodedMaker
from stateful_gpu_loader.engine.makers.images import Allocate
from stateful_gpu_loader.engine.makers.memory import BatchMemory
from stateful_gpu_loader.transforms import Compose

_MOST_FREE = 16
"""Number of batches whose memory waits for reuse: one for each reader."""


def _memory_of_the_host() -> Allocate:
    """Return page-locked memory, as the loader allocates it; without a GPU, other reused memory."""
    if torch.cuda.is_available():
        return lambda shape, dtype: torch.empty(shape, dtype=dtype, pin_memory=True)
    memory = BatchMemory(keep=_MOST_FREE)

    def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        # Use powers of two, as torch rounds locked memory, so that other sizes can reuse it.
        (num_bytes,) = shape
        return memory.empty((1 << num_bytes.bit_length(),), dtype)[:num_bytes]

    return empty


class ReadingAlone:
    """Work of one reader for a batch, repeated.

    Args:
        folder: folder of the files, which are in the page cache after the first time.
        recipes: recipes whose numbers are drawn.
        batch_size: number of images in one request.
    """

    def __init__(self, folder: PhotographFolder, recipes: Compose, batch_size: int) -> None:
        self._folder = folder
        self._batch_size = batch_size
        self._execute = EncodedMaker(
            folder_source(folder),
            takes=lambda header, data: True,
            decoder=make_decoder("torchvision"),
            recipes=recipes,
            allocate=_memory_of_the_host(),
            policy=BadSamplePolicy(mode="raise"),
        )

    def images_a_second(self, *, num_threads: int, num_batches: int) -> float:
        """Return the rate of ``num_threads`` readers at a time."""
        requests = requests_of(len(self._folder.files), self._batch_size, num_batches)
        seconds = seconds_to_execute(
            requests, lambda request: self._execute(request, lambda: None), num_threads=num_threads
        )
        return num_batches * self._batch_size / seconds

    def cpu_microseconds_an_image(self, *, num_batches: int) -> float:
        """Return the time of one core, including system calls, in one thread."""
        requests = requests_of(len(self._folder.files), self._batch_size, num_batches)
        started = time.thread_time()
        for request in requests:
            self._execute(request, lambda: None)
        return 1e6 * (time.thread_time() - started) / (num_batches * self._batch_size)
