"""Decoding with torchcodec: libjpeg-turbo, libpng and libwebp on the CPU, nvJPEG on a GPU."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from stateful_gpu_loader.decoders.batch_rule import (
    decode_batch_by_rule,
    is_common_baseline,
    wait_for_the_stream,
)
from stateful_gpu_loader.decoders.decoder import Decoder, Image
from stateful_gpu_loader.decoders.header import ImageHeader, JpegHeader
from stateful_gpu_loader.decoders.machine import describe_versions, load_package
from stateful_gpu_loader.decoders.rule import (
    RGB,
    RawOperator,
    decode_by_rule,
    raw_operators,
    without_exif,
)
from stateful_gpu_loader.errors import LoaderError


class TorchcodecDecoder(Decoder):
    """Decodes with torchcodec's image operators; needs the extra ``codec``, but no FFmpeg.

    torchcodec has its own rules for EXIF orientations. So it gets the bytes without EXIF, and the
    orientation is applied here.

    Raises:
        MissingDependency: torchcodec is not installed.
        LoaderError: torchcodec is installed but cannot be used.
    """

    family = "torchcodec"

    def __init__(self) -> None:
        _operators()

    def version(self) -> str:
        import torchcodec

        return str(torchcodec.__version__)

    def decode(self, data: torch.Tensor, header: ImageHeader) -> torch.Tensor:
        """See :meth:`Decoder.decode`."""
        if isinstance(header, JpegHeader):
            data = without_exif(data, header)
        return decode_by_rule(_operators(), data, header)


@functools.cache
def _operators() -> dict[str, RawOperator]:
    return load_package(
        _load,
        module="torchcodec",
        package="torchcodec",
        needed_for="decoder='torchcodec'",
        extra="codec",
        remedy=f"a torchcodec (>= 0.16) that fits torch {torch.__version__}",
    )


def _load() -> dict[str, RawOperator]:
    import torchcodec  # noqa: F401  (registers the operators)

    return raw_operators(torch.ops.torchcodec_ns)


_WITH_ENGINES = frozenset({(8, 0), (9, 0)})
"""Compute capabilities of GPUs whose JPEG engines torchcodec uses: A100, A30, H100, H200."""

_LONGEST_SIDE = 8192
"""Largest side in pixels for the JPEG engines. An H100's take 9,000 and refuse 20,000."""


class TorchcodecBatchDecoder:
    """Decodes with ``torch.ops.torchcodec_ns.decode_jpegs_cuda``; needs the extra ``codec``.

    As in :class:`TorchvisionBatchDecoder`, the bytes decide between the JPEG engines and CUDA. If
    one call passes several images to CUDA, torchcodec 0.17 returns wrong pixels for some (seen on
    an H100). So images that the engines may refuse are decoded one per call, and so are all images
    on GPUs without engines.

    The loader's readers remove EXIF, for which torchcodec has its own rules.

    Args:
        device: a CUDA device.

    Raises:
        MissingDependency: torchcodec is not installed.
        LoaderError: torchcodec is installed but cannot be used, or decodes only on the CPU.
    """

    family = "torchcodec-cuda"
    takes = staticmethod(is_common_baseline)
    acts_on_exif = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.cpu: Decoder = TorchcodecDecoder()
        if not hasattr(torch.ops.torchcodec_ns, "decode_jpegs_cuda"):
            raise LoaderError(
                f"decoder='torchcodec' with device={str(device)!r} cannot be used: torchcodec "
                f"{self.cpu.version()} decodes no images on GPUs. Remedy: install torchcodec >= "
                "0.17, or use decoder='torchvision'"
            )

    def version(self) -> str:
        """Return the version of torchcodec, which includes its own nvJPEG, and the GPU models."""
        return describe_versions("torchcodec")

    def decode_batch(
        self, data: Sequence[torch.Tensor], headers: Sequence[ImageHeader]
    ) -> list[Image | ValueError]:
        """See :meth:`BatchDecoder.decode_batch`."""
        wait_for_the_stream(self._device)
        plain = [
            without_exif(each, header) if isinstance(header, JpegHeader) else each
            for each, header in zip(data, headers, strict=True)
        ]
        has_engines = torch.cuda.get_device_capability(self._device) in _WITH_ENGINES
        together = [
            i
            for i, header in enumerate(headers)
            if has_engines
            and not header.progressive
            and max(header.height, header.width) <= _LONGEST_SIDE
        ]
        alone = sorted(set(range(len(plain))).difference(together))
        images: dict[int, Image | ValueError] = {}
        for part in (together, *([i] for i in alone)):
            found = decode_batch_by_rule(
                self._decode, [plain[i] for i in part], [headers[i] for i in part]
            )
            images.update(zip(part, found, strict=True))
        return [images[i] for i in range(len(plain))]

    def _decode(self, data: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        images: list[torch.Tensor] = torch.ops.torchcodec_ns.decode_jpegs_cuda(
            data, RGB, self._device
        )
        return images

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._device})"
