"""The decoders by name, and which of them this machine has."""

from __future__ import annotations

from collections.abc import Callable

from stateful_gpu_loader.decoders.decoder import Decoder
from stateful_gpu_loader.decoders.torchcodec_decoder import TorchcodecDecoder
from stateful_gpu_loader.decoders.torchvision_decoder import TorchvisionDecoder
from stateful_gpu_loader.errors import LoaderError

DECODERS: dict[str, Callable[[], Decoder]] = {
    "torchcodec": TorchcodecDecoder,
    "torchvision": TorchvisionDecoder,
}
"""In the order in which "auto" tries them."""


def available() -> list[str]:
    """The names of the decoders that can be used here, the one that "auto" takes first.

    >>> "torchvision" in available()
    True
    """
    return [name for name in DECODERS if _usable(name)]


def make_decoder(name: str, prefer: str | None = None) -> Decoder:
    """The decoder of this name.

    Args:
        name: ``"torchcodec"``, ``"torchvision"``, or ``"auto"`` for the first that is available.
        prefer: a family (as a loaded state names it) that ``"auto"`` takes where available.

    Raises:
        ValueError: there is no decoder of this name.
        MissingDependency: its package is not installed.
        LoaderError: its package cannot be used; the text says why.

    >>> make_decoder("auto", prefer="torchvision").family
    'torchvision'
    >>> make_decoder("pillow")
    Traceback (most recent call last):
        ...
    ValueError: unknown decoder 'pillow'. Remedy: use one of 'auto', 'torchcodec', 'torchvision'
    """
    if name == "auto":
        names = available()
        return DECODERS[prefer if prefer in names else names[0]]()
    if name not in DECODERS:
        choices = ", ".join(repr(choice) for choice in ("auto", *DECODERS))
        raise ValueError(f"unknown decoder {name!r}. Remedy: use one of {choices}")
    return DECODERS[name]()


def _usable(name: str) -> bool:
    try:
        DECODERS[name]()
    except LoaderError:
        return False
    return True
