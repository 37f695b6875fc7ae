"""TorchcodecDecoder: libjpeg-turbo, libpng and libwebp as torchcodec bundles them."""

from __future__ import annotations

import functools
import importlib.util

import torch

from stateful_gpu_loader.decoders.header import ImageHeader, JpegHeader
from stateful_gpu_loader.decoders.rule import RawOperator, decode_by_rule, without_exif
from stateful_gpu_loader.errors import LoaderError, MissingDependency


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
    if importlib.util.find_spec("torchcodec") is None:
        raise MissingDependency("torchcodec", needed_for="decoder='torchcodec'", extra="codec")
    try:
        import torchcodec  # noqa: F401  (registers the operators)

        codec = torch.ops.torchcodec_ns
        return {
            "jpeg": codec.decode_jpeg.default,
            "png": codec.decode_png.default,
            "webp": codec.decode_webp.default,
        }
    # Loading its libraries fails in many ways: ImportError, OSError, RuntimeError, AttributeError.
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise LoaderError(
            f"decoder='torchcodec' cannot be used: importing torchcodec failed with "
            f"{type(error).__name__}: {reason}. Remedy: install a torchcodec (>= 0.16) that fits "
            f"torch {torch.__version__}, or use decoder='torchvision'"
        ) from error
