"""Decoding with torchvision: libjpeg-turbo, libpng and libwebp on the CPU, nvJPEG on a GPU."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence

import torch

from stateful_gpu_loader.decoders.batch_rule import (
    decode_batch_by_rule,
    is_common_baseline,
    wait_for_the_stream,
    with_index,
)
from stateful_gpu_loader.decoders.decoder import Decoder, Image
from stateful_gpu_loader.decoders.header import ImageHeader
from stateful_gpu_loader.decoders.machine import describe_versions
from stateful_gpu_loader.decoders.rule import RGB, RawOperator, decode_by_rule, raw_operators


class TorchvisionDecoder(Decoder):
    """Decodes with torchvision's registered operators; always available.

    Since 0.29 the functions of ``torchvision.io`` warn that they are deprecated, but their
    operators do not. From 0.23 on, the operators have the same two leading arguments, and by
    default apply no EXIF orientation.

    >>> from stateful_gpu_loader.decoders import probe
    >>> TorchvisionDecoder()
    TorchvisionDecoder()
    """

    family = "torchvision"

    def __init__(self) -> None:
        _operators()

    def version(self) -> str:
        import torchvision

        return str(torchvision.__version__)

    def decode(self, data: torch.Tensor, header: ImageHeader) -> torch.Tensor:
        """See :meth:`Decoder.decode`."""
        return decode_by_rule(_operators(), data, header)


@functools.cache
def _operators() -> dict[str, RawOperator]:
    import torchvision  # noqa: F401  (registers the operators)

    return raw_operators(torch.ops.image)


class TorchvisionBatchDecoder:
    """Decodes with ``torch.ops.image.decode_jpegs_cuda``; always available.

    The bytes of an image, never the load, decide between the GPU's JPEG engines and nvJPEG's CUDA
    kernels: the engines decode whatever they accept. EXIF is ignored. The decoder works on a
    private stream and has finished when it returns. A process has one such decoder. Each change of
    the device makes another, and the old one's memory is never freed.

    Args:
        device: a CUDA device.

    >>> TorchvisionBatchDecoder(torch.device("cuda", 0))
    TorchvisionBatchDecoder(cuda:0)
    """

    family = "torchvision-cuda"
    takes = staticmethod(is_common_baseline)
    acts_on_exif = False

    def __init__(self, device: torch.device) -> None:
        import torchvision  # noqa: F401  (registers the operators)

        self._device = device
        self.cpu: Decoder = TorchvisionDecoder()

    def version(self) -> str:
        """Return the version of torchvision, which includes its own nvJPEG, and the GPU models."""
        return describe_versions("torchvision")

    def decode_batch(
        self, data: Sequence[torch.Tensor], headers: Sequence[ImageHeader]
    ) -> list[Image | ValueError]:
        """See :meth:`BatchDecoder.decode_batch`."""
        wait_for_the_stream(self._device)
        # "cuda" and "cuda:0" would count as different devices.
        device = with_index(self._device)
        _warn_of_several(device)
        decode = torch.ops.image.decode_jpegs_cuda
        return decode_batch_by_rule(lambda images: decode(images, RGB, device), data, headers)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._device})"


_DEVICES: set[torch.device] = set()
"""Devices on which this process has decoded."""


def _warn_of_several(device: torch.device) -> None:
    if device not in _DEVICES and _DEVICES:
        warnings.warn(
            f"decoder='torchvision' has decoded on {', '.join(map(str, _DEVICES))} in this "
            f"process, and now decodes on {device}. torchvision keeps one decoder per process: "
            "each change of the device makes a new one, and the old one's memory is not freed. "
            "Remedy: use decoder='torchcodec', or one process per GPU",
            stacklevel=2,
        )
    _DEVICES.add(device)
