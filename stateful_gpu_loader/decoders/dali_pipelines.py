"""DALI pipelines that decode JPEGs: bytes in, pixels out, and nothing else in them."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from stateful_gpu_loader.decoders.batch_rule import NO_FAULT_OF_THE_BYTES, NO_MEMORY
from stateful_gpu_loader.decoders.optional import load_package

INPUT = "encoded"

Pipeline = Any
"""A ``nvidia.dali.Pipeline``."""


def build(max_batch_size: int, *, device_id: int | None, num_threads: int) -> Pipeline:
    """A pipeline for batches of 1 to ``max_batch_size`` images.

    Args:
        max_batch_size: images.
        device_id: of the GPU that decodes; None for the CPU.
        num_threads: of DALI's own, for the part of the work that is done on the CPU.

    Law 1 decides its options. With any other ``hw_decoder_load`` than 0 DALI would share a batch
    out between the GPU's JPEG engines and CUDA by its length, even with 1.0 (the length of the
    first batch is the limit), and these differ in pixels.
    """
    dali = require_dali()
    pipeline = dali.Pipeline(
        batch_size=max_batch_size,
        num_threads=num_threads,
        device_id=device_id,
        prefetch_queue_depth=1,
        exec_async=False,
        exec_pipelined=False,
        # Its outputs own their memory, the other executors write the next batch over them.
        exec_dynamic=True,
    )
    with pipeline:
        encoded = dali.fn.external_source(name=INPUT, device="cpu", batch=True)
        pixels = dali.fn.decoders.image(
            encoded,
            device="cpu" if device_id is None else "mixed",
            output_type=dali.types.RGB,
            adjust_orientation=False,
            use_fast_idct=False,
            hw_decoder_load=0.0,
            jpeg_fancy_upsampling=True,
        )
        pipeline.set_outputs(pixels)
    pipeline.build()
    return pipeline


def run(pipeline: Pipeline, data: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The pixels of a batch, complete: uint8 [3, height, width] each, views of DALI's HWC memory.

    Args:
        pipeline: as :func:`build` made it. After an error it is of no more use.
        data: uint8 [num_bytes] each, on the CPU; at least one, at most the pipeline's batch size.

    Raises:
        RuntimeError: DALI cannot decode one of them, in one line; it names no culprit that could
            be trusted.
    """
    try:
        pipeline.feed_input(INPUT, [each.numpy() for each in data])
        (pixels,) = pipeline.run()
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(_reason(str(error))) from error
    return [from_dlpack(pixels[i]).permute(2, 0, 1) for i in range(len(data))]


class PipelinePool:
    """Pipelines that are built when they are needed, each used by one thread at a time.

    Args:
        device_id: of the GPU that decodes; None for the CPU.
        num_threads: of DALI's own, in each pipeline.
    """

    def __init__(self, *, device_id: int | None, num_threads: int) -> None:
        self._device_id = device_id
        self._num_threads = num_threads
        # By process: a pipeline that a fork inherits hangs when it runs, because its threads
        # stayed behind, and when it is freed. So it is left lying here.
        self._idle: dict[int, list[tuple[int, Pipeline]]] = {}

    def decode(self, data: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """As :func:`run`; a pipeline that raises is not used again."""
        idle = self._idle.setdefault(os.getpid(), [])
        try:
            size, pipeline = idle.pop()
        except IndexError:
            size, pipeline = 0, None
        if size < len(data):
            size = 1 << (len(data) - 1).bit_length()
            pipeline = build(size, device_id=self._device_id, num_threads=self._num_threads)
        pixels = run(pipeline, data)
        idle.append((size, pipeline))
        return pixels


@functools.cache
def require_dali(needed_for: str = "decoder='dali'") -> Any:
    """The package ``nvidia.dali``.

    Args:
        needed_for: what asks for it.

    Raises:
        MissingDependency: it is not installed.
        LoaderError: it is installed and cannot be imported; the text says why.
    """
    return load_package(
        _load,
        module="nvidia.dali",
        package="nvidia-dali-cuda120",
        needed_for=needed_for,
        extra="dali",
        cuda_13_extra="dali-cu13",
        remedy="a nvidia-dali that fits the driver's CUDA",
    )


def _load() -> Any:
    import nvidia.dali
    import nvidia.dali.fn
    import nvidia.dali.types

    return nvidia.dali


def _reason(text: str) -> str:
    """The line of DALI's report that says what happened, without its place in the batch."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [
        line for line in lines if NO_MEMORY.search(line) or NO_FAULT_OF_THE_BYTES.search(line)
    ]
    if telling:
        return telling[0]
    return "DALI failed to decode it"
