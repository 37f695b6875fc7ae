"""DaliBatchDecoder: nvJPEG as DALI's "mixed" image decoder calls it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stateful_gpu_loader.decoders.batch_rule import (
    decode_batch_by_rule,
    wait_for_the_stream,
    with_index,
)
from stateful_gpu_loader.decoders.dali_pipelines import PipelinePool, require_dali
from stateful_gpu_loader.decoders.decoder import Decoder
from stateful_gpu_loader.decoders.header import ImageHeader
from stateful_gpu_loader.decoders.machine import DALI, NVIMGCODEC, describe_versions, host_threads
from stateful_gpu_loader.decoders.routing import takes_common
from stateful_gpu_loader.decoders.torchvision_decoder import TorchvisionDecoder


class DaliBatchDecoder:
    """Decodes with a DALI pipeline that does nothing else; needs the extra ``dali``.

    The JPEG engines stay unused: DALI would choose between them and CUDA by the batch's length.
    DALI keeps no state of the stream. Its pixels are copied once, into torch's own memory on the
    current stream, and its buffers are given back only when the copies are done: another pipeline
    of the process may write there next, on a stream of its own.

    Args:
        device: a CUDA device.

    Raises:
        MissingDependency: DALI is not installed.
        LoaderError: DALI is installed and cannot be imported; the text says why.
    """

    family = "dali-cuda"
    takes = staticmethod(takes_common)

    def __init__(self, device: torch.device) -> None:
        require_dali()
        self._device = device
        self._pool: PipelinePool | None = None
        self.cpu: Decoder = TorchvisionDecoder()

    def version(self) -> str:
        """Of DALI, the nvImageCodec and nvJPEG under it, and the GPU's model."""
        return describe_versions(*DALI, *NVIMGCODEC)

    def decode_batch(
        self, data: Sequence[torch.Tensor], headers: Sequence[ImageHeader]
    ) -> list[torch.Tensor | ValueError]:
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
