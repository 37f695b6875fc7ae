"""TorchvisionDecoder: libjpeg-turbo, libpng and libwebp as torchvision bundles them."""

from __future__ import annotations

import functools

import torch

from stateful_gpu_loader.decoders.header import ImageHeader
from stateful_gpu_loader.decoders.rule import RawOperator, decode_by_rule


class TorchvisionDecoder:
    """Decodes with torchvision's registered operators; always there.

    The functions of ``torchvision.io`` warn since 0.29 that they are deprecated, the operators
    under them do not. They keep the same two leading arguments from torchvision 0.23 on, and
    apply no EXIF orientation unless asked.

    >>> from stateful_gpu_loader.decoders import probe
    >>> TorchvisionDecoder()
    TorchvisionDecoder()
    """

    family = "torchvision"

    def __init__(self) -> None:
        _operators()

    def version(self) -> str:
        """As ``torchvision.__version__``."""
        import torchvision

        return str(torchvision.__version__)

    def decode(self, data: torch.Tensor, header: ImageHeader) -> torch.Tensor:
        """See :meth:`Decoder.decode`."""
        return decode_by_rule(_operators(), data, header)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


@functools.cache
def _operators() -> dict[str, RawOperator]:
    import torchvision  # noqa: F401  (registers the operators)

    image = torch.ops.image
    return {
        "jpeg": image.decode_jpeg.default,
        "png": image.decode_png.default,
        "webp": image.decode_webp.default,
    }
