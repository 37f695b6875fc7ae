"""Decoding with DALI pipelines, on the CPU and on a GPU."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from stateful_gpu_loader.decoders.batch_rule import (
    NO_FAULT_OF_THE_BYTES,
    NO_MEMORY,
    decode_batch_by_rule,
    is_common_jpeg,
    wait_for_the_stream,
    with_index,
)
from stateful_gpu_loader.decoders.decoder import Decoder, Image
from stateful_gpu_loader.decoders.header import ImageHeader
from stateful_gpu_loader.decoders.machine import (
    DALI,
    NVIMGCODEC,
    describe_versions,
    host_threads,
    load_package,
)
from stateful_gpu_loader.decoders.rule import decode_by_rule
from stateful_gpu_loader.decoders.torchvision import TorchvisionDecoder

INPUT = "encoded"

Pipeline = Any
"""A ``nvidia.dali.Pipeline``."""


def build(max_batch_size: int, *, device_id: int | None, num_threads: int) -> Pipeline:
    """Build a decoding pipeline for batches of 1 to ``max_batch_size`` images.

    With these options, pixels depend on an image's bytes alone. With ``hw_decoder_load`` above 0,
    even 1.0, DALI would divide a batch between the GPU's JPEG engines and CUDA by its length, and
    the two give different pixels.

    Args:
        max_batch_size: images.
        device_id: index of the GPU that decodes; None for the CPU.
        num_threads: DALI's own threads, for the work on the CPU.
    """
    dali = require_dali()
    pipeline = dali.Pipeline(
        batch_size=max_batch_size,
        num_threads=num_threads,
        device_id=device_id,
        prefetch_queue_depth=1,
        exec_async=False,
        exec_pipelined=False,
        # Other executors overwrite the outputs with the next batch.
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
    """Return the decoded batch: uint8 [3, height, width] each, views of DALI's HWC memory.

    Args:
        pipeline: made by :func:`build`. It cannot be used again after an error.
        data: uint8 [num_bytes] each, on the CPU; at least one, at most the pipeline's batch size.

    Raises:
        RuntimeError: DALI cannot decode an image; the message does not reliably say which.
    """
    try:
        pipeline.feed_input(INPUT, [each.numpy() for each in data])
        (pixels,) = pipeline.run()
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(_reason(str(error))) from error
    return [from_dlpack(pixels[i]).permute(2, 0, 1) for i in range(len(data))]


class PipelinePool:
    """Pipelines built on demand; one thread at a time uses a pipeline.

    Args:
        device_id: index of the GPU that decodes; None for the CPU.
        num_threads: DALI's own threads in each pipeline.
    """

    def __init__(self, *, device_id: int | None, num_threads: int) -> None:
        self._device_id = device_id
        self._num_threads = num_threads
        # By process. Without its threads a pipeline hangs in a forked child, even when it is freed,
        # so it is kept here, unused.
        self._idle: dict[int, list[tuple[int, Pipeline]]] = {}

    def decode(self, data: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Call :func:`run` with an idle or a new pipeline, which is dropped if it raises."""
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
    """Return the package ``nvidia.dali``.

    Args:
        needed_for: feature, for the message.

    Raises:
        MissingDependency: DALI is not installed.
        LoaderError: DALI is installed but cannot be imported.
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
    """Return the line of DALI's report that names the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [
        line for line in lines if NO_MEMORY.search(line) or NO_FAULT_OF_THE_BYTES.search(line)
    ]
    if telling:
        return telling[0]
    return "DALI failed to decode it"


_POOL = PipelinePool(device_id=None, num_threads=1)
"""Shared by all decoders of a process, so decoders hold no pipeline and can be pickled."""


class DaliDecoder(Decoder):
    """Decodes common JPEGs with DALI on the CPU, and the rest with torchvision; needs ``dali``.

    The pixels equal those of a project's own DALI pipelines. Each process builds a pipeline per
    decoding thread.

    Raises:
        MissingDependency: DALI is not installed.
        LoaderError: DALI is installed but cannot be imported.
    """

    family = "dali"

    def __init__(self) -> None:
        require_dali()
        self._other = TorchvisionDecoder()

    def version(self) -> str:
        """Return ``nvidia.dali.__version__``."""
        return str(require_dali().__version__)

    def decode(self, data: torch.Tensor, header: ImageHeader) -> torch.Tensor:
        """See :meth:`Decoder.decode`."""
        if not is_common_jpeg(header):
            return self._other.decode(data, header)
        return decode_by_rule({"jpeg": _decode_one}, data, header)


def _decode_one(data: torch.Tensor, mode: int) -> torch.Tensor:
    (pixels,) = _POOL.decode([data])
    return pixels


class DaliBatchDecoder:
    """Decodes with a DALI pipeline that only decodes; needs the extra ``dali``.

    The JPEG engines stay unused, because DALI would choose them by the batch's length. The pixels
    are copied once, into torch's memory on the current stream. DALI gets its buffers back only
    after the copies, because another pipeline may write to them.

    Args:
        device: a CUDA device.

    Raises:
        MissingDependency: DALI is not installed.
        LoaderError: DALI is installed but cannot be imported.
    """

    family = "dali-cuda"
    takes = staticmethod(is_common_jpeg)
    acts_on_exif = False

    def __init__(self, device: torch.device) -> None:
        require_dali()
        self._device = device
        self._pool: PipelinePool | None = None
        self.cpu: Decoder = TorchvisionDecoder()

    def version(self) -> str:
        """Return the versions of DALI, nvImageCodec and nvJPEG, and the GPU models."""
        return describe_versions(*DALI, *NVIMGCODEC)

    def decode_batch(
        self, data: Sequence[torch.Tensor], headers: Sequence[ImageHeader]
    ) -> list[Image | ValueError]:
        """See :meth:`BatchDecoder.decode_batch`."""
        wait_for_the_stream(self._device)
        return decode_batch_by_rule(self._decode, data, headers)

    def _decode(self, data: list[torch.Tensor]) -> list[torch.Tensor]:
        if self._pool is None:
            self._pool = PipelinePool(
                device_id=with_index(self._device).index, num_threads=host_threads()
            )
        pixels = self._pool.decode(data)
        copies = [image.clone() for image in pixels]
        wait_for_the_stream(self._device)
        return copies

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._device,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._device})"
