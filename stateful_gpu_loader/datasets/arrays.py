"""ArraySource: images that are pixels in one array or tensor, read in batches."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.datasets.source import OwnImage, Size, Source, reads_as
from stateful_gpu_loader.datasets.storage.memory import Bytes, Memory, new_memory
from stateful_gpu_loader.decoders import ImageHeader
from stateful_gpu_loader.records import EncodedSample, IndexArray
from stateful_gpu_loader.state.contents import ContentDigest
from stateful_gpu_loader.state.schema import SAMPLED
from stateful_gpu_loader.state.tensors import spread

_MOST_DIGESTED = 1 << 28
"""Maximum size in bytes of the pixels for which the fingerprint covers every image."""
_MOST_SAMPLED = 1024
"""Number of images that the fingerprint of a larger array covers."""
_BLOCK = 1 << 24
_CHANNELS = (1, 3)
_TARGETS = "Remedy: pass n numbers, n texts, or an array of numbers"


class ArraySource(Source):
    """Decoded images of equal size in one array, such as CIFAR-10, MNIST or a ``.npy`` of crops.

    Recipes are applied to many images at a time, which is much faster for small images. The pixels
    are the same as with one image at a time.

    Images are delivered in RGB: grey images have three equal channels.

    An array from ``numpy.load(..., mmap_mode="r")`` is read from its file, and a spawned worker
    opens the file again. Any other array is copied to spawned workers and shared with forked ones.

    Args:
        images: uint8 array or CPU tensor: RGB [n, height, width, 3] or [n, 3, height, width], or
            grey [n, height, width], with or without a channel dimension. It is not copied and must
            not change.
        targets: n numbers or strings, or an array [n, ...] with an array for each image; None for
            the index.

    Attributes:
        images: the images, as given.
        targets: array [n, ...], read-only.

    Raises:
        TypeError: unsupported type, dtype or device of the images, or targets that are Python
            objects.
        ValueError: wrong shape of the images, no images, or a wrong number of targets.

    >>> images = np.zeros((5, 32, 32, 3), dtype=np.uint8)
    >>> source = ArraySource(images, [7, 1, 0, 2, 9])
    >>> len(source), source.read(4).target
    (5, 9)
    """

    makes_pixels = True
    suits_processes = True
    images: Any
    targets: npt.NDArray[Any]

    def __init__(self, images: Any, targets: Any = None) -> None:
        self.images = images
        self._open()
        self.targets = _as_targets(targets, len(self))
        self._fingerprint: str | None = None

    def _open(self) -> None:
        self._channels_last = _has_channels_last(_as_pixels(self.images).shape)

    @property
    def _pixels(self) -> Bytes:
        """uint8 [n, height, width, channels] or [n, channels, height, width], as given.

        Made again for each use: sending a tensor to a process moves it to shared memory and frees
        the memory of an older array.
        """
        images = self.images
        found: Any = images.detach().numpy() if isinstance(images, torch.Tensor) else images
        pixels: Bytes = np.asarray(found)
        return pixels[..., None] if pixels.ndim == 3 else pixels

    def __len__(self) -> int:
        return len(self.images)

    def _pixel_size(self) -> Size | None:
        return self._size if reads_as(self, ArraySource) else None

    @property
    def _size(self) -> Size:
        shape = self._pixels.shape
        height, width = shape[1:3] if self._channels_last else shape[2:]
        return height, width

    def read(self, index: int, into: Memory | None = None) -> EncodedSample:
        """Return the image as a binary PPM, and its target."""
        height, width = self._size
        head = f"P6 {width} {height} 255\n".encode()
        data = (into or new_memory)(len(head) + 3 * height * width)
        data[: len(head)] = np.frombuffer(head, dtype=np.uint8)
        data[len(head) :].reshape(height, width, 3)[:] = self._interleaved(index)
        return EncodedSample(torch.from_numpy(data), self._target(index), self._name(index))

    def open_for_loader(self, index: int) -> EncodedSample | OwnImage:
        if not reads_as(self, ArraySource):
            return self.read(index)
        height, width = self._size

        def make(memory: Memory) -> torch.Tensor:
            data = memory(3 * height * width).reshape(height, width, 3)
            data[:] = self._interleaved(index)
            return torch.from_numpy(data).permute(2, 0, 1)

        header = ImageHeader("ppm", height=height, width=width, orientation=1)
        return OwnImage(header, self._target(index), self._name(index), make)

    def read_target_alone(self, index: int) -> Any:
        return self._target(index) if reads_as(self, ArraySource) else self.read(index).target

    def _read_pixels(self, indices: IndexArray) -> tuple[torch.Tensor, list[Any]]:
        pixels = torch.from_numpy(self._pixels[indices])
        if self._channels_last:
            pixels = pixels.permute(0, 3, 1, 2)
        targets = self.targets[indices]
        return pixels.expand(-1, 3, -1, -1), targets.tolist() if targets.ndim == 1 else [*targets]

    def fingerprint(self) -> str:
        """Return a blake2b of the pixels and targets.

        For more than 256 MiB of pixels it covers 1,024 images spread over the array.
        """
        if self._fingerprint is None:
            digest = ContentDigest("arrays 1")
            pixels = self._pixels
            length, num_bytes = len(self), max(1, math.prod(pixels.shape[1:]))
            is_whole = length * num_bytes <= _MOST_DIGESTED
            chosen = np.array(spread(length, length if is_whole else _MOST_SAMPLED))
            step = max(1, _BLOCK // num_bytes)
            for start in range(0, len(chosen), step):
                block = pixels[chosen[start : start + step]]
                if not self._channels_last:
                    block = block.transpose(0, 2, 3, 1)
                digest.add(np.ascontiguousarray(block).tobytes())
            targets = np.ascontiguousarray(self.targets)
            digest.add(targets.astype(targets.dtype.newbyteorder("<")).tobytes())
            height, width = self._size
            shape = f"{height}x{width}x{num_bytes // max(1, height * width)}"
            kind = f"{targets.dtype.name} {list(targets.shape[1:])}"
            self._fingerprint = (
                f"{length} images of {shape}, targets {kind}, {digest.text()}"
                f"{'' if is_whole else SAMPLED}"
            )
        return self._fingerprint

    def _interleaved(self, index: int) -> Bytes:
        """Return a view, uint8 [height, width, channels]."""
        image = self._pixels[index]
        interleaved: Bytes = image if self._channels_last else image.transpose(1, 2, 0)
        return interleaved

    def _target(self, index: int) -> Any:
        row = self.targets[index]
        return row.item() if self.targets.ndim == 1 else row.copy()

    def _name(self, index: int) -> str:
        return f"{type(self).__name__}[{index}]"

    def __getstate__(self) -> dict[str, Any]:
        """Replace a memory-mapped array by its place."""
        return {**self.__dict__, "images": _Mapped.of(self.images) or self.images}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self.images, _Mapped):
            self.images = self.images.open()
        self._open()

    def __repr__(self) -> str:
        height, width = self._size
        return f"{type(self).__name__}({len(self)} images of {height}x{width})"


class _Mapped:
    """Place of a memory-mapped array in its file."""

    def __init__(self, path: str, offset: int, shape: Sequence[int], strides: Sequence[int]):
        self.path = path
        self.offset = offset
        """First byte of the array in the file."""
        self.shape = tuple(shape)
        self.strides = tuple(strides)

    @classmethod
    def of(cls, array: Any) -> _Mapped | None:
        """Return the place of a memory-mapped array, or of a view of one; None for other arrays."""
        root = array
        while isinstance(root, np.ndarray) and not isinstance(root.base, mmap.mmap):
            root = root.base
        if (
            not isinstance(root, np.memmap)
            or root.filename is None
            or root.mode == "c"
            or min(array.strides) < 0
        ):
            return None
        first = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
        return cls(str(root.filename), root.offset + first, array.shape, array.strides)

    def open(self) -> Bytes:
        """Map the array again, read-only.

        Raises:
            OSError: the file cannot be opened.
            ValueError: the file has become shorter.
        """
        pairs = zip(self.shape, self.strides, strict=True)
        num_bytes = 1 + sum((side - 1) * stride for side, stride in pairs)
        data = np.memmap(self.path, np.uint8, "r", self.offset, (num_bytes,))
        opened: Bytes = np.ndarray(self.shape, np.uint8, data, strides=self.strides)
        return opened


def _as_pixels(images: Any) -> Bytes:
    """Return the images as an array, uint8 [n, ...], on the same memory."""
    if isinstance(images, torch.Tensor):
        if images.device.type != "cpu":
            raise TypeError(
                f"images are on {images.device}, and sources are read on CPUs. Remedy: images.cpu()"
            )
        found: Any = images.detach().numpy()
    elif isinstance(images, np.ndarray):
        found = np.asarray(images)
    else:
        raise TypeError(
            f"images is of type {type(images).__name__}, not an array or tensor. Remedy: "
            "numpy.stack(images) if they are of one size"
        )
    if found.dtype != np.uint8:
        raise TypeError(
            f"images are {found.dtype}, not uint8. Remedy: for floats in [0, 1] "
            "(images * 255).round(), then .astype(numpy.uint8) or .to(torch.uint8)"
        )
    if found.ndim not in (3, 4) or 0 in found.shape:
        raise ValueError(
            f"images are of shape {list(found.shape)}. Remedy: [n, height, width, 3] or "
            "[n, 3, height, width] in RGB, or [n, height, width] in grey, with n > 0"
        )
    pixels: Bytes = found
    return pixels


def _has_channels_last(shape: Sequence[int]) -> bool:
    if len(shape) == 3:
        return True
    is_first, is_last = shape[1] in _CHANNELS, shape[3] in _CHANNELS
    if is_first == is_last:
        what = "both sides" if is_first else "neither side"
        raise ValueError(
            f"images are of shape {list(shape)}: {what} could be 1 or 3 channels. Remedy: "
            "[n, height, width, 3] or [n, 3, height, width], without alpha, images of at least 4x4"
        )
    return is_last


def _as_targets(targets: Any, length: int) -> npt.NDArray[Any]:
    """Return the targets as an array [n, ...], read-only."""
    if targets is None:
        found: Any = np.arange(length)
    else:
        try:
            # A tensor is copied, since its memory moves when it is sent to a process.
            is_tensor = isinstance(targets, torch.Tensor)
            found = np.asarray(targets.detach().cpu().clone() if is_tensor else targets)
        except (TypeError, ValueError) as error:
            raise TypeError(f"targets cannot be an array: {error}. {_TARGETS}") from error
    if found.dtype.kind not in "biufU" or (found.dtype.kind == "U" and found.ndim > 1):
        raise TypeError(f"targets are {found.dtype} {list(found.shape)}. {_TARGETS}")
    if found.ndim == 1 and isinstance(targets, (list, tuple)):
        _check_kept(found.tolist(), targets)
    if found.ndim == 0 or len(found) != length:
        raise ValueError(
            f"there are {length} images and targets of shape {list(found.shape)}. Remedy: one "
            "target for each image"
        )
    found = found.astype(found.dtype.newbyteorder("="), copy=False).view()
    found.setflags(write=False)
    return found  # type: ignore[no-any-return]


def _check_kept(kept: Sequence[Any], given: Sequence[Any]) -> None:
    """Refuse targets that NumPy has converted, such as a number among texts."""
    for i, (here, there) in enumerate(zip(kept, given, strict=True)):
        if here != there and there == there:
            raise TypeError(
                f"targets[{i}] is {there!r}, and an array of all targets holds {here!r} instead. "
                f"{_TARGETS}"
            )
