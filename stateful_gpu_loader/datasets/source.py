"""Source: a dataset that returns encoded images and their targets by index."""

from __future__ import annotations

import inspect
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from stateful_gpu_loader.datasets.storage.memory import Memory
from stateful_gpu_loader.decoders import ImageHeader, probe
from stateful_gpu_loader.records import EncodedSample, IndexArray

Size = tuple[int, int]


class Source(Dataset[tuple[torch.Tensor, Any]], ABC):
    """The base of every random-access source of encoded images.

    A format is one file with one subclass that defines three methods: ``__len__``,
    :meth:`read` and :meth:`fingerprint`. The loader needs nothing else of it. A source can be
    pickled (workers may be spawned), and holds what it needs to read any index: nothing is
    listed or indexed again in a worker.

    As a plain dataset it gives ``(data, target)``: the encoded bytes as uint8 [num_bytes].

    >>> class OneColour(Source):
    ...     def __len__(self):
    ...         return 3
    ...     def read(self, index):
    ...         return EncodedSample(torch.tensor([index], dtype=torch.uint8), index, f"{index}")
    ...     def fingerprint(self):
    ...         return "one colour, 3 images"
    >>> OneColour()[-1]
    (tensor([2], dtype=torch.uint8), 2)
    """

    has_spatial_targets: bool = False
    """Whether targets speak of places in the image (boxes, masks), and so move with its pixels."""
    suits_processes: bool = False
    """Whether many workers are faster as threads of several forked processes than of one.

    A class says so for itself and not for its subclasses. A forked child must be able to read from
    the source, whatever other threads did at that moment, and threads must share nothing that they
    have read, such as a row group that one of them has decoded.
    """
    num_recipes_before: int = 0
    """Recipes that the images went through already; a loader's draw as those that follow them."""

    makes_pixels: bool = False
    """Whether the images are pixels that were decoded before, and no files of JPEG or the like."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls.suits_processes = vars(cls).get("suits_processes", False)

    @property
    def is_remote(self) -> bool:
        """Whether samples are read by URL, so that it pays to be told of them by :meth:`expect`."""
        return False

    def expect(self, indices: npt.NDArray[np.int64], *, anew: bool = False) -> None:
        """Begin to fetch samples that will be read soon; asked only of a source that is remote.

        It changes nothing but time: a sample that was expected may never be read, and one that was
        not may be. A failure shows when the sample is read.

        Args:
            indices: int64 [n], each in ``range(len(self))``.
            anew: whether a pass begins, so that what was expected before need not be kept.
        """

    def move_target(
        self, index: int, target: Any, motion: npt.NDArray[np.float64], size: Size
    ) -> Any:
        """The target after the image was moved, of a source that has spatial targets.

        Args:
            index: of the sample.
            target: that :meth:`read` gave with it; it stays as it is.
            motion: float64 [2, 3]: (x, y, 1) to (x, y), in pixels from the upper left corner.
            size: height and width of the result in pixels.
        """
        return target

    def _object_counts(self) -> npt.NDArray[np.int64] | None:
        """Return the number of objects in each target, int64 [n]; None if targets are no lists."""
        return None

    def _pixel_size(self) -> Size | None:
        """Return the size of all images, if :meth:`_read_pixels` reads many of them at a time."""
        return None

    def _read_pixels(self, indices: IndexArray) -> tuple[torch.Tensor, list[Any]]:
        """Return the pixels and targets of many samples, of a source that has a pixel size.

        Args:
            indices: int64 [n], each in ``range(len(self))``.

        Returns:
            uint8 [n, 3, height, width] of any strides, and n targets, as of :meth:`read`.
        """
        raise NotImplementedError(f"{type(self).__name__} reads images one by one")

    @abstractmethod
    def __len__(self) -> int:
        """The number of samples."""

    @abstractmethod
    def read(self, index: int) -> EncodedSample:
        """The encoded sample at ``0 <= index < len(self)``, read directly, not by skipping.

        Called from many threads at once: it has no side effects, and releases the GIL while it
        waits for storage.

        A source may give it a second parameter, ``into: Memory | None = None``: memory that the
        bytes may be read into, at the beginning of what it returns last.

        Raises:
            OSError: the storage failed; the loader retries. Its text names the sample and index.
            ValueError: the record itself is malformed, and will be at every retry.
        """

    def open_for_loader(self, index: int) -> EncodedSample | OwnImage:
        """The sample of :meth:`read`, or an image whose pixels the source makes when asked."""
        return self.read(index)

    def read_target_alone(self, index: int) -> Any:
        """The target of :meth:`read`; a source that can do so leaves the image unread."""
        return self.read(index).target

    @abstractmethod
    def fingerprint(self) -> str:
        """The content id: equal for equal samples in equal order, wherever they are stored.

        Cheap (from names or an index, never from the pixels) and computed at the first call.
        """

    def __getitem__(self, index: SupportsIndex) -> tuple[torch.Tensor, Any]:
        """``(data, target)``; integers of every kind, negative ones count from the end.

        Raises:
            IndexError: the index is outside ``[-len(self), len(self))``.
        """
        number, length = operator.index(index), len(self)
        if not -length <= number < length:
            raise IndexError(
                f"index {number} is out of range for {type(self).__name__} with {length} samples. "
                f"Remedy: use -{length} <= index < {length}"
            )
        sample = self.read(number % length)
        return sample.data, sample.target


@dataclass(frozen=True, slots=True)
class OwnImage:
    """An image whose pixels its source makes itself, when they are asked for."""

    header: ImageHeader
    """Of the pixels, as if they were a file."""
    target: Any
    """As of an :class:`EncodedSample`."""
    name: str
    """As of an :class:`EncodedSample`."""
    make: Callable[[Memory], torch.Tensor]
    """Makes uint8 [3, height, width] on the CPU, which may lie in the memory that is given; raises
    as ``read`` and a decoder do."""


def read_into(source: Source, index: int, into: Memory | None) -> EncodedSample:
    """Return ``source.read(index)``, into this memory if a method ``read`` takes ``into=None``."""
    read: Callable[..., EncodedSample] = source.read
    function = getattr(read, "__func__", None)
    if into is not None and type(function) is FunctionType and _takes_into(function):
        return read(index, into=into)
    return read(index)


@lru_cache(maxsize=64)
def _takes_into(function: FunctionType) -> bool:
    # The parameters of a decorator's own function, and not of the one that it wraps.
    into = inspect.signature(function, follow_wrapped=False).parameters.get("into")
    return into is not None and into.default is None and into.kind is not into.POSITIONAL_ONLY


def reads_as(source: Source, kind: type[Any]) -> bool:
    """Whether a source of this class reads by the class's own ``read``.

    If a subclass, a mixin or an attribute of the source replaces ``read``, what the class does
    without calling ``read`` does not hold.
    """
    return getattr(source.read, "__func__", None) is kind.read


def image_header(sample: EncodedSample | OwnImage, view: memoryview | None = None) -> ImageHeader:
    """Return the header of an image, parsed from its bytes.

    Args:
        view: shows the same bytes as ``sample.data``, if it is at hand.

    Raises:
        ValueError: the bytes are no image, or of another size than the target refers to.
    """
    if isinstance(sample, OwnImage):
        return sample.header
    header = probe(sample.data if view is None else view)
    if sample.size is not None:
        _check_size(sample.size, header)
    return header


def _check_size(size: Size, header: ImageHeader) -> None:
    """Refuse an image whose size differs from the one that its boxes and masks refer to."""
    if size != (header.height, header.width):
        raise ValueError(
            f"the target is of an image of {size[0]}x{size[1]} pixels, and this one "
            f"is {header.height}x{header.width} (height x width, EXIF orientation "
            f"{header.orientation} applied). Remedy: correct the annotations, or turn the file"
        )
    if header.orientation not in (1, 5, 6, 7, 8):
        raise ValueError(
            f"the image has EXIF orientation {header.orientation}, and it is not known whether its "
            "target is of the pixels before or after it. Remedy: write the file upright"
        )
