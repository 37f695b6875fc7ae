"""DaliDecoder: DALI's image decoder on the CPU, behind the protocol of all decoders."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stateful_gpu_loader.decoders.batch_rule import decode_batch_by_rule
from stateful_gpu_loader.decoders.dali_pipelines import PipelinePool, require_dali
from stateful_gpu_loader.decoders.header import ImageHeader
from stateful_gpu_loader.decoders.routing import is_common_jpeg
from stateful_gpu_loader.decoders.rule import decode_by_rule
from stateful_gpu_loader.decoders.torchvision_decoder import TorchvisionDecoder

_POOL = PipelinePool(device_id=None, num_threads=1)
"""Shared by all decoders of a process: they hold nothing themselves, so they can be pickled."""


class DaliDecoder:
    """Decodes common JPEGs with DALI on the CPU, the rest with torchvision; needs ``dali``.

    For those who want the pixels that DALI gives elsewhere in their work. A pipeline is built for
    each thread that decodes at the same time, in each process, when it first does.

    Raises:
        MissingDependency: DALI is not installed.
        LoaderError: DALI is installed and cannot be imported; the text says why.
    """

    family = "dali"
    takes = staticmethod(is_common_jpeg)

    def __init__(self) -> None:
        require_dali()
        self._other = TorchvisionDecoder()

    def version(self) -> str:
        """As ``nvidia.dali.__version__``."""
        return str(require_dali().__version__)

    def decode(self, data: torch.Tensor, header: ImageHeader) -> torch.Tensor:
        """See :meth:`Decoder.decode`."""
        if not is_common_jpeg(header):
            return self._other.decode(data, header)
        return decode_by_rule({"jpeg": _decode_one}, data, header)

    def decode_batch(
        self, data: Sequence[torch.Tensor], headers: Sequence[ImageHeader]
    ) -> list[torch.Tensor | ValueError]:
        """What :meth:`decode` gives or raises for each image, in one run of DALI.

        Args:
            data: uint8 [num_bytes] each, on the CPU: images that :attr:`takes` is true of.
            headers: what ``probe`` says of each.
        """
        return decode_batch_by_rule(_POOL.decode, data, headers)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _decode_one(data: torch.Tensor, mode: int) -> torch.Tensor:
    (pixels,) = _POOL.decode([data])
    return pixels
