"""nvImageCodec: parts of JPEGs on the CPU, and JPEG engines and CUDA kernels on a GPU."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from stateful_gpu_loader.decoders.batch_rule import (
    SPARE_BYTES,
    decode_batch_by_rule,
    is_common_jpeg,
    wait_for_the_stream,
    with_index,
)
from stateful_gpu_loader.decoders.cuda_driver import keep_freed_memory
from stateful_gpu_loader.decoders.decoder import (
    Box,
    Decoder,
    Image,
    Size,
    StridedImage,
    as_tensor,
)
from stateful_gpu_loader.decoders.header import ImageHeader, JpegHeader
from stateful_gpu_loader.decoders.jpeg import is_one_clean_scan
from stateful_gpu_loader.decoders.machine import (
    NVIMGCODEC,
    describe_versions,
    host_threads,
    load_package,
    package_versions,
)
from stateful_gpu_loader.decoders.orientation import stored_box, turned
from stateful_gpu_loader.decoders.torchvision import TorchvisionDecoder
from stateful_gpu_loader.errors import LoaderError

OPTIONS = ":fancy_upsampling=1"
"""Interpolate chroma as libjpeg does (nvJPEG 12.1 and later)."""

BATCHES = 2
"""Number of a loader's decoded batches in memory at a time."""

LEAST_SIDE = 8
"""Minimum side in pixels. nvImageCodec 0.9 gives other bits in one column at the left of a JPEG."""

GRANULE = 512
"""Allocation unit of the pool, in bytes."""

TRIAL_SIDE = 256
"""Side in pixels of the grey image that shows whether this GPU has JPEG engines."""


class NvimgcodecDecoder(Decoder):
    """Decodes parts of JPEGs with nvImageCodec, and the rest with torchvision, on the CPU.

    Both use libjpeg-turbo, and a part is bit-identical to the same part of the whole image, at less
    cost: rows after it are skipped, and other pixels only entropy-decoded.

    Header, bytes and part decide which library decodes. torchvision decodes every file that
    nvImageCodec refuses, and every damaged file, as a whole (:func:`is_one_clean_scan`). The extra
    ``nvimgcodec`` is needed, but no GPU or driver.

    Raises:
        MissingDependency: nvimgcodec is not installed.
        LoaderError: nvimgcodec is installed but cannot be used.
    """

    family = "nvimgcodec-cpu"

    def __init__(self) -> None:
        if not hasattr(_library(), "Region"):
            raise LoaderError(
                "decoder='nvimgcodec' cannot be used on the CPU: this nvImageCodec decodes no "
                "regions. Remedy: install nvidia-nvimgcodec-cu12 >= 0.9, or use "
                "decoder='torchvision'"
            )

    def version(self) -> str:
        """Return the versions of torchvision and of nvImageCodec."""
        return ", ".join([TorchvisionDecoder().version(), *package_versions(*NVIMGCODEC[:2])])

    def decode(self, data: torch.Tensor, header: ImageHeader) -> torch.Tensor:
        """See :meth:`Decoder.decode`."""
        # Made here, so that workers import torchvision only if an image needs it.
        return TorchvisionDecoder().decode(data, header)

    def decode_part(
        self, data: torch.Tensor, header: ImageHeader, box: Box, least: Size | None
    ) -> torch.Tensor:
        """See :meth:`Decoder.decode_part`."""
        if isinstance(header, JpegHeader) and is_worth_it(header, box):
            image = _decode_part(data, header, box)
            if image is not None:
                return image
        return super().decode_part(data, header, box, least)


def is_worth_it(header: JpegHeader, box: Box) -> bool:
    """Whether nvImageCodec can decode this part of this JPEG, and faster than the whole."""
    return (
        header.has_common_pixels
        and min(box[2:]) >= LEAST_SIDE
        and box[2:] != (header.height, header.width)
    )


def _decode_part(data: torch.Tensor, header: JpegHeader, box: Box) -> torch.Tensor | None:
    """Return uint8 [3, height, width] of a box, a view of HWC memory; None if not decoded."""
    library, pixels = _library(), data.numpy()
    if not is_one_clean_scan(pixels, header):
        return None
    top, left, height, width = stored_box(box, (header.height, header.width), header.orientation)
    region = library.Region(top, left, top + height, left + width)
    try:
        stream = library.CodeStream(pixels).get_sub_code_stream(region=region)
        found = _of_this_thread().decode(stream, params=_parameters())
    except RuntimeError:
        return None
    image = None if found is None else np.asarray(found)
    if image is None or image.shape != (height, width, 3):
        return None
    return as_tensor(turned(torch.from_numpy(image).permute(2, 0, 1), header.orientation))


_LOCAL = threading.local()


def _of_this_thread() -> Any:
    """Return this thread's nvImageCodec decoder, for the CPU alone.

    With one thread it starts none, so a forked child can use it.
    """
    decoder = getattr(_LOCAL, "decoder", None)
    if decoder is None:
        library = _library()
        decoder = _LOCAL.decoder = library.Decoder(
            device_id=library.NVIMGCODEC_DEVICE_CPU_ONLY,
            max_num_cpu_threads=1,
            backends=[library.Backend(library.BackendKind.CPU_ONLY)],
        )
    return decoder


class NvimgcodecBatchDecoder:
    """Decodes with nvImageCodec; needs the extra ``nvimgcodec``.

    A decoder with several backends, which differ in pixels, would divide a batch by its length. So
    there are two decoders, with one backend each: the JPEG engines, and nvJPEG on CUDA for what the
    engines cannot take, or refuse alone. nvImageCodec writes a line to stderr for a refused image.

    Args:
        device: a CUDA device.

    Raises:
        MissingDependency: nvimgcodec is not installed.
        LoaderError: nvimgcodec is installed but cannot be imported.
    """

    family = "nvimgcodec"
    takes = staticmethod(is_common_jpeg)
    acts_on_exif = False

    def __init__(self, device: torch.device) -> None:
        _library()
        self._device = device
        self._stages: _Stages | None = None
        self.cpu: Decoder = TorchvisionDecoder()

    def version(self) -> str:
        """Return the versions of nvImageCodec and its nvJPEG, and the GPU models."""
        return describe_versions(*NVIMGCODEC)

    def decode_batch(
        self, data: Sequence[torch.Tensor], headers: Sequence[ImageHeader]
    ) -> list[Image | ValueError]:
        """See :meth:`BatchDecoder.decode_batch`."""
        if self._stages is None:
            self._stages = _Stages(self._device)
        wait_for_the_stream(self._device)
        answers: list[Image | ValueError | None] = [None] * len(data)
        self._stages.keep(bytes_to_keep(headers))
        simple = [i for i, header in enumerate(headers) if not header.progressive]
        if self._stages.engines is not None:
            _fill(answers, simple, self._stages.engines, data, headers)
        rest = [i for i, answer in enumerate(answers) if not isinstance(answer, Image)]
        _fill(answers, rest, self._stages.cuda, data, headers)
        return [answer for answer in answers if answer is not None]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._device,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._device})"


class _Stages:
    """nvImageCodec's objects, made at the first batch."""

    def __init__(self, device: torch.device) -> None:
        kinds = _library().BackendKind
        self._device = device = with_index(device)
        self._kept_bytes = 0
        self.cuda = _Stage(device, kinds.HYBRID_CPU_GPU)
        engines = _Stage(device, kinds.HW_GPU_ONLY)
        self.engines = engines if engines.decode([_trial()])[0] is not None else None

    def keep(self, num_bytes: int) -> None:
        """Let the pool keep memory for this decoder's largest batch, too."""
        if num_bytes <= self._kept_bytes:
            return
        with _lock:
            self._kept_bytes = num_bytes
            _DECODERS.add(self)
            shares = [each._kept_bytes for each in _DECODERS if each._device == self._device]
            keep_freed_memory(self._device.index, sum(shares))


_DECODERS: weakref.WeakSet[_Stages] = weakref.WeakSet()
"""Decoders of this process whose memory the pool keeps."""
_lock = threading.Lock()


def bytes_to_keep(headers: Sequence[ImageHeader]) -> int:
    """Return the number of bytes that a decoder needs again for each batch like this one.

    >>> from stateful_gpu_loader.decoders import PngHeader
    >>> photo = PngHeader("png", 375, 500, 1, bit_depth=8, color_type=2, interlaced=False)
    >>> bytes_to_keep([photo] * 256) / 2**20
    338.75
    """
    pixels = sum(-(-3 * header.height * header.width // GRANULE) * GRANULE for header in headers)
    return BATCHES * pixels + SPARE_BYTES


class _Stage:
    """One backend on one device."""

    def __init__(self, device: torch.device, kind: Any) -> None:
        library = _library()
        self._device = device
        self._parameters = _parameters()
        self._decoder = library.Decoder(
            device_id=device.index,
            max_num_cpu_threads=host_threads(),
            backends=[library.Backend(kind)],
            options=OPTIONS,
        )

    def decode(self, data: list[torch.Tensor]) -> list[Image | None]:
        """Return uint8 [3, height, width] each, in nvImageCodec's HWC memory, or None."""
        stream = torch.cuda.current_stream(self._device).cuda_stream
        images = self._decoder.decode(
            [_library().CodeStream(each.numpy()) for each in data],
            params=self._parameters,
            cuda_stream=stream,
        )
        return [None if image is None else _strided(image, stream) for image in images]


def _fill(
    answers: list[Image | ValueError | None],
    places: list[int],
    stage: _Stage,
    data: Sequence[torch.Tensor],
    headers: Sequence[ImageHeader],
) -> None:
    found = decode_batch_by_rule(
        stage.decode, [data[i] for i in places], [headers[i] for i in places]
    )
    for i, answer in zip(places, found, strict=True):
        answers[i] = answer


def _strided(image: Any, stream: int) -> StridedImage:
    # from_dlpack(image) would first request a newer DLPack, which raises.
    pixels = from_dlpack(image.to_dlpack(stream))
    (height, width, channels), (row, column, channel) = pixels.shape, pixels.stride()
    return StridedImage(pixels, (channels, height, width), (channel, row, column))


def _trial() -> torch.Tensor:
    grey = torch.full((3, TRIAL_SIDE, TRIAL_SIDE), 128, dtype=torch.uint8)
    encoded: torch.Tensor = torch.ops.image.encode_jpeg(grey, 90)
    return encoded


def _parameters() -> Any:
    library = _library()
    return library.DecodeParams(
        apply_exif_orientation=False, color_spec=library.ColorSpec.SRGB, allow_any_depth=False
    )


@functools.cache
def _library() -> Any:
    return load_package(
        _load,
        module="nvidia.nvimgcodec",
        package="nvidia-nvimgcodec-cu12",
        needed_for="decoder='nvimgcodec'",
        extra="nvimgcodec",
        cuda_13_extra="nvimgcodec-cu13",
        remedy="a nvidia-nvimgcodec that fits the driver's CUDA",
    )


def _load() -> Any:
    # Otherwise it warns of each refused image, which the loader reports.
    os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "1")
    from nvidia import nvimgcodec

    return nvimgcodec
