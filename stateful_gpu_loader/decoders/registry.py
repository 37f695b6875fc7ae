"""The decoders by name, and which of them this machine has."""

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
"""On the CPU, in the order in which "auto" tries them (docs/decoders.md says why)."""

BATCH_DECODERS: dict[str, Callable[[torch.device], BatchDecoder]] = {
    "torchcodec": TorchcodecBatchDecoder,
    "torchvision": TorchvisionBatchDecoder,
    "nvimgcodec": NvimgcodecBatchDecoder,
    "dali": DaliBatchDecoder,
}
"""On a GPU, in the order in which "auto" tries them (docs/decoders.md says why)."""

DECODER_NAMES = ("auto", *BATCH_DECODERS)
"""What ``decoder=`` may be; each has a form for the CPU and one for a GPU."""

CPU_FAMILIES = {
    "torchcodec": "torchcodec",
    "torchvision": "torchvision",
    "dali": "dali",
    "nvimgcodec-cpu": "nvimgcodec",
}
"""The name of each CPU decoder by its family, as a state's fingerprint keeps it."""

FAMILIES = {
    "torchcodec-cuda": "torchcodec",
    "torchvision-cuda": "torchvision",
    "nvimgcodec": "nvimgcodec",
    "dali-cuda": "dali",
}
"""The name of each GPU decoder by its family, as a state's fingerprint keeps it."""

AnyDecoder = TypeVar("AnyDecoder")


def available() -> list[str]:
    """The names of the decoders that can be used on the CPU, the one that "auto" takes first.

    >>> "torchvision" in available()
    True
    """
    return [name for name in DECODERS if _made(DECODERS[name]) is not None]


def make_decoder(name: str, prefer: str | None = None) -> Decoder:
    """The CPU's decoder of this name.

    Args:
        name: ``"nvimgcodec"``, ``"torchcodec"``, ``"torchvision"``, ``"dali"``, or ``"auto"`` for
            the first that is available.
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
    ValueError: unknown decoder 'pillow'. Remedy: use one of 'auto', 'torchcodec', 'torchvision', \
'nvimgcodec', 'dali'
    """
    if name == "auto":
        return _first(DECODERS, CPU_FAMILIES.get((prefer or "").partition(",")[0]))
    _check_name(name)
    return DECODERS[name]()


def make_batch_decoder(name: str, device: torch.device, prefer: str | None = None) -> BatchDecoder:
    """The GPU's decoder of this name; CUDA is not touched before it decodes.

    Args:
        name: ``"torchcodec"``, ``"torchvision"``, ``"nvimgcodec"``, ``"dali"``, or ``"auto"`` for
            the first whose package is available.
        device: a CUDA device; without an index, the one that is current when it decodes.
        prefer: a family (as a loaded state names it) that ``"auto"`` takes where available.

    Raises:
        ValueError: there is no decoder of this name, or ``device`` is no GPU.
        MissingDependency: its package is not installed.
        LoaderError: its package cannot be used; the text says why.

    >>> make_batch_decoder("auto", torch.device("cuda"), prefer="torchvision-cuda").family
    'torchvision-cuda'
    """
    if device.type != "cuda":
        raise ValueError(
            f"device={str(device)!r} decodes image by image. Remedy: make_decoder({name!r}), or "
            "pass a CUDA device"
        )
    makers = {each: partial(make, device) for each, make in BATCH_DECODERS.items()}
    if name == "auto":
        return _first(makers, FAMILIES.get((prefer or "").partition(",")[0]))
    _check_name(name)
    return makers[name]()


def _first(makers: Mapping[str, Callable[[], AnyDecoder]], prefer: str | None) -> AnyDecoder:
    """Imports no further package than the one it finds: each takes a while."""
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
        raise ValueError(f"unknown decoder {name!r}. Remedy: use one of {_listed(*DECODER_NAMES)}")


def _listed(*names: str) -> str:
    return ", ".join(repr(name) for name in names)
