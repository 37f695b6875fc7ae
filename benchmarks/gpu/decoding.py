"""Decoding on the GPU without anything else: the ceiling of the GPU benchmark."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.loaders import DEVICE
from stateful_gpu_loader.decoders import ImageHeader, probe
from stateful_gpu_loader.decoders.decoder import Image
from stateful_gpu_loader.decoders.registry import BATCH_DECODERS, make_batch_decoder

BACKENDS = tuple(BATCH_DECODERS)
"""Backends in the order in which "auto" tries them."""


@dataclass(frozen=True)
class EncodedFiles:
    """Files in page-locked memory, as the loader's readers produce them."""

    data: list[torch.Tensor]
    headers: list[ImageHeader]

    @property
    def sizes(self) -> np.ndarray:
        """int64 [n, 2]: height and width in pixels."""
        return np.array([(header.height, header.width) for header in self.headers], dtype=np.int64)


def read_batches(files: Sequence[str], batch_size: int) -> list[EncodedFiles]:
    """Return all whole batches of these files."""
    batches = []
    for start in range(0, len(files) - batch_size + 1, batch_size):
        data = [
            torch.from_numpy(np.fromfile(file, dtype=np.uint8))
            for file in files[start : start + batch_size]
        ]
        arena = torch.cat(data).pin_memory()
        encoded = list(arena.split([one.numel() for one in data]))
        batches.append(EncodedFiles(encoded, [probe(one) for one in encoded]))
    return batches


class DecodingAlone:
    """One backend in one thread, batch after batch, called as in the loader's stage.

    Args:
        backend: name of the decoder.
        batches: batches decoded repeatedly.
    """

    def __init__(self, backend: str, batches: Sequence[EncodedFiles]) -> None:
        self._decoder: Any = make_batch_decoder(backend, DEVICE)
        self._batches = batches

    def decode(self, number: int) -> list[Image]:
        """Decode one batch.

        Raises:
            ValueError: an image was refused, which would invalidate the time.
        """
        batch = self._batches[number % len(self._batches)]
        images = []
        for found in self._decoder.decode_batch(batch.data, batch.headers):
            if isinstance(found, ValueError):
                raise found
            images.append(found)
        return images

    def images_a_second(self, *, warm_up: int, timed: int) -> float:
        """Return the rate over ``timed`` batches; each is waited for, as in the stage."""
        stream, num_images = torch.cuda.Stream(DEVICE), 0
        with torch.cuda.stream(stream):
            for number in range(warm_up):
                self.decode(number)
            stream.synchronize()
            started = time.perf_counter()
            for number in range(timed):
                num_images += len(self.decode(number))
                stream.synchronize()
            return num_images / (time.perf_counter() - started)


def what_is_wrong(backend: str, files: Sequence[str]) -> str | None:
    """Return why a backend cannot take part, by trying it; None if it can."""
    try:
        batches = read_batches(files, len(files))
        images = DecodingAlone(backend, batches).decode(0)
        torch.cuda.synchronize()
        wanted = [(3, header.height, header.width) for header in batches[0].headers]
        if [tuple(image.shape) for image in images] != wanted:
            return f"it gives images of {[tuple(image.shape) for image in images[:3]]}, ..."
    except Exception as error:
        return f"{type(error).__name__}: {str(error).partition('Remedy')[0].strip()}"
    return None


def usable_backends(files: Sequence[str], seconds: float = 90.0) -> dict[str, str | None]:
    """Return the fault of each backend, or None; all are tried at once.

    They run in separate processes, because a crash of one library must not end the benchmark.
    """
    command = [sys.executable, "-m", "benchmarks.gpu.decoding"]
    trials = {
        backend: subprocess.Popen([*command, backend, *files], stdout=subprocess.PIPE, text=True)
        for backend in BACKENDS
    }
    deadline = time.monotonic() + seconds
    return {backend: _outcome(trial, deadline) for backend, trial in trials.items()}


def _outcome(trial: subprocess.Popen[str], deadline: float) -> str | None:
    try:
        said, _ = trial.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        trial.kill()
        trial.communicate()
        return "its trial did not end in time"
    if trial.returncode != 0:
        return f"its trial ended with code {trial.returncode}"
    wrong: str | None = json.loads(said.splitlines()[-1])
    return wrong


if __name__ == "__main__":
    print(json.dumps(what_is_wrong(sys.argv[1], sys.argv[2:])))
