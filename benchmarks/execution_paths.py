"""Two ways from encoded images to a batch with one interface: by image, and by batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import default_collate

from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.decoders import Decoder
from stateful_gpu_loader.engine.makers.bad_sample_policy import BadSamplePolicy
from stateful_gpu_loader.engine.makers.images import (
    ImageMaker,
    decode,
    draw,
    opened,
)
from stateful_gpu_loader.records import Request
from stateful_gpu_loader.transforms import Compose

_Task = TypeVar("_Task")
Path = Callable[[Request], Any]
"""Makes ``[images, targets]`` of a request; runs in any thread."""


def image_by_image(source: Source, decoder: Decoder, recipes: Compose) -> Path:
    """Return the path of a CPU loader's threads: each image is finished while it is in cache."""
    maker = ImageMaker(
        source,
        decoder=decoder,
        recipes=recipes,
        collate_fn=default_collate,
        batched=True,
        allocate=lambda shape, dtype: torch.empty(shape, dtype=dtype),
        policy=BadSamplePolicy(mode="raise"),
    )
    return lambda request: maker(request, lambda: None)


def batch_by_batch(source: Source, decoder: Decoder, recipes: Compose) -> Path:
    """Return the device stage's path, on the CPU: decode all images, then augment in one call."""

    def execute(request: Request) -> list[Any]:
        keys = request.keys()
        encoded = [opened(source, key) for key in keys]
        drawn, _ = draw(recipes, keys, encoded)
        images = [decode(decoder, image, key) for image, key in zip(encoded, keys, strict=True)]
        with torch.inference_mode():
            batch = recipes.apply_batch(images, drawn)
        return [batch, default_collate([image.target for image in encoded])]

    return execute


def requests_of(num_images: int, batch_size: int, num_batches: int) -> list[Request]:
    """Return requests for consecutive batches, which cycle through the images."""
    return [
        Request(
            ordinal=ordinal,
            seed=42,
            epoch=0,
            start=ordinal * batch_size,
            step=1,
            indices=np.arange(ordinal * batch_size, (ordinal + 1) * batch_size) % num_images,
            end=(ordinal + 1) * batch_size,
        )
        for ordinal in range(num_batches)
    ]


def seconds_to_execute(
    tasks: Sequence[_Task], execute: Callable[[_Task], Any], *, num_threads: int
) -> float:
    """Return the wall time of all tasks. Threads take them in turn, each with one intra-op thread,
    like workers.

    Raises:
        Exception: an exception of a task, which would invalidate the time.
    """
    rest, lock = iter(tasks), threading.Lock()
    errors: list[Exception] = []

    def work() -> None:
        try:
            while not errors:
                with lock:
                    task = next(rest, None)
                if task is None:
                    return
                execute(task)
        except Exception as error:
            errors.append(error)

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        threads = [threading.Thread(target=work) for _ in range(num_threads)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - started
    finally:
        torch.set_num_threads(before)
    if errors:
        raise errors[0]
    return seconds
