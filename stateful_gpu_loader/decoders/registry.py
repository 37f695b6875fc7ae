"""The decoders by name, and those that are available on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import torch

from stateful_gpu_loader.decoders.dali import DaliBatchDecoder, DaliDecoder
from stateful_gpu_loader.decoders.decoder import BatchDecoder, Decoder
from stateful_gpu_loader.decoders.nvimgcodec import NvimgcodecBatchDecoder, NvimgcodecDecoder
from stateful_gpu_loader.decoders.torchcodec import TorchcodecBatchDecoder, TorchcodecDecoder
from stateful_gpu_loader.decoders.torchvision import TorchvisionBatchDecoder, TorchvisionDecoder
from stateful_gpu_loader.errors import LoaderError

DECODERS: dict[str, Callable[[], Decoder]] = {
    "nvimgcodec": NvimgcodecDecoder,
    "torchcodec": TorchcodecDecoder,
    "torchvision": TorchvisionDecoder,
    "dali": DaliDecoder,
}
"""CPU decoders, in the order of "auto"."""

BATCH_DECODERS: dict[str, Callable[[torch.device], BatchDecoder]] = {
    "torchcodec": TorchcodecBatchDecoder,
    "torchvision": TorchvisionBatchDecoder,
    "nvimgcodec": NvimgcodecBatchDecoder,
    "dali": DaliBatchDecoder,
}
"""GPU decoders, in the order of "auto" (docs/decoders.md gives reasons)."""

DECODER_NAMES = ("auto", *BATCH_DECODERS)
"""Values of ``decoder=``; each name has a CPU decoder and a GPU decoder."""

CPU_FAMILIES = {
    "torchcodec": "torchcodec",
    "torchvision": "torchvision",
    "dali": "dali",
    "nvimgcodec-cpu": "nvimgcodec",
}
"""CPU decoder names by family; a state's fingerprint keeps the family."""

FAMILIES = {
    "torchcodec-cuda": "torchcodec",
    "torchvision-cuda": "torchvision",
    "nvimgcodec": "nvimgcodec",
    "dali-cuda": "dali",
}
"""GPU decoder names by family; a state's fingerprint keeps the family."""

AnyDecoder = TypeVar("AnyDecoder")


def available() -> list[str]:
    """Return the names of the usable CPU decoders, the choice of "auto" first.

    >>> "torchvision" in available()
    True
    """
    return [name for name in DECODERS if _made(DECODERS[name]) is not None]


def make_decoder(name: str, prefer: str | None = None) -> Decoder:
    """Return the CPU decoder of this name.

    Args:
        name: ``"nvimgcodec"``, ``"torchcodec"``, ``"torchvision"``, ``"dali"``, or ``"auto"`` for
            the first that is available.
        prefer: family (as in a loaded state) that ``"auto"`` takes if it is available.

    Raises:
        ValueError: there is no decoder of this name.
        MissingDependency: its package is not installed.
        LoaderError: its package cannot be used.

    >>> make_decoder("auto", prefer="torchvision").family
    'torchvision'
    >>> make_decoder("pillow")
    Traceback (most recent call last):
        ...
    ValueError: unknown decoder 'pillow'. Remedy: use one of 'auto', 'torchcodec', 'torchvision', \
'nvimgcodec', 'dali'
    """
    if name == "auto":
        return _first(DECODERS, CPU_FAMILIES.get((prefer or "").partition(",")[0]))
    _check_name(name)
    return DECODERS[name]()


def make_batch_decoder(name: str, device: torch.device, prefer: str | None = None) -> BatchDecoder:
    """Return the GPU decoder of this name. CUDA is not touched before it decodes.

    Args:
        name: ``"torchcodec"``, ``"torchvision"``, ``"nvimgcodec"``, ``"dali"``, or ``"auto"`` for
            the first whose package is available.
        device: a CUDA device; without an index, the device that is current when it decodes.
        prefer: family (as in a loaded state) that ``"auto"`` takes if it is available.

    Raises:
        ValueError: there is no decoder of this name, or ``device`` is not a GPU.
        MissingDependency: its package is not installed.
        LoaderError: its package cannot be used.

    >>> make_batch_decoder("auto", torch.device("cuda"), prefer="torchvision-cuda").family
    'torchvision-cuda'
    """
    if device.type != "cuda":
        raise ValueError(
            f"device={str(device)!r} has no batch decoder. Remedy: use make_decoder({name!r}), or "
            "pass a CUDA device"
        )
    makers = {each: partial(make, device) for each, make in BATCH_DECODERS.items()}
    if name == "auto":
        return _first(makers, FAMILIES.get((prefer or "").partition(",")[0]))
    _check_name(name)
    return makers[name]()


def _first(makers: Mapping[str, Callable[[], AnyDecoder]], prefer: str | None) -> AnyDecoder:
    """Return the first decoder that works, without importing later packages."""
    names = sorted(makers, key=lambda name: name != prefer)
    for name in names:
        decoder = _made(makers[name])
        if decoder is not None:
            return decoder
    return makers["torchvision"]()


def _made(make: Callable[[], AnyDecoder]) -> AnyDecoder | None:
    try:
        return make()
    except LoaderError:
        return None


def _check_name(name: str) -> None:
    if name not in DECODER_NAMES:
        raise ValueError(
            f"unknown decoder {name!r}. Remedy: use one of {', '.join(map(repr, DECODER_NAMES))}"
        )
