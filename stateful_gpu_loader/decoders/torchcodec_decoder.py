"""TorchcodecDecoder: libjpeg-turbo, libpng and libwebp as torchcodec bundles them."""

from __future__ import annotations

import functools

import torch

from stateful_gpu_loader.decoders.header import ImageHeader, JpegHeader
from stateful_gpu_loader.decoders.optional import load_package
from stateful_gpu_loader.decoders.rule import RawOperator, decode_by_rule, without_exif


class TorchcodecDecoder:
    """Decodes with torchcodec's image operators; needs the extra ``codec``, but no FFmpeg.

    torchcodec applies EXIF orientations by its own reading. So that every backend shows the
    same pixels, it is given the bytes without EXIF, and the orientation is applied here.

    Raises:
        MissingDependency: torchcodec is not installed.
        LoaderError: torchcodec is installed and cannot be used; the text says why.
    """

    family = "torchcodec"

    def __init__(self) -> None:
        _operators()

    def version(self) -> str:
        """As ``torchcodec.__version__``."""
        import torchcodec

        return str(torchcodec.__version__)

    def decode(self, data: torch.Tensor, header: ImageHeader) -> torch.Tensor:
        """See :meth:`Decoder.decode`."""
        if isinstance(header, JpegHeader):
            data = without_exif(data, header)
        return decode_by_rule(_operators(), data, header)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


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

    codec = torch.ops.torchcodec_ns
    return {
        "jpeg": codec.decode_jpeg.default,
        "png": codec.decode_png.default,
        "webp": codec.decode_webp.default,
    }
