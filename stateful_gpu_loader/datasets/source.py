"""Source: a dataset of encoded images and their targets, with random access."""

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
    """Base class of all random-access sources of encoded images.

    A format is a subclass in its own file, with three methods: ``__len__``, :meth:`read` and
    :meth:`fingerprint`. A source can be pickled for spawned workers, and contains everything needed
    to read any index.

    As a plain dataset it returns ``(data, target)``, with the encoded bytes as uint8 [num_bytes].

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
    """Whether targets (boxes, masks) move with the image's pixels."""
    suits_processes: bool = False
    """Whether many workers are faster as threads of several forked processes than of one.

    Subclasses do not inherit it. A forked child must be able to read, whatever other threads did at
    the fork. Threads must share nothing that they have read, such as a decoded row group.
    """
    num_recipes_before: int = 0
    """Number of recipes already applied to the images; the loader's streams follow theirs."""

    makes_pixels: bool = False
    """Whether the images are already decoded pixels instead of JPEG or other image files."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls.suits_processes = vars(cls).get("suits_processes", False)

    @property
    def is_remote(self) -> bool:
        """Return whether samples are read by URL, so that :meth:`expect` saves time."""
        return False

    def expect(self, indices: npt.NDArray[np.int64], *, anew: bool = False) -> None:
        """Begin to fetch samples that will be read soon; called only for a remote source.

        It affects time alone. A failure appears when the sample is read.

        Args:
            indices: int64 [n], each in ``range(len(self))``.
            anew: whether a new pass begins, so that earlier expected samples can be dropped.
        """

    def move_target(
        self, index: int, target: Any, motion: npt.NDArray[np.float64], size: Size
    ) -> Any:
        """Return the target after the image was moved, for a source with spatial targets.

        Args:
            index: index of the sample.
            target: target returned by :meth:`read`; it is not changed.
            motion: float64 [2, 3]: (x, y, 1) to (x, y), in pixels from the upper left corner.
            size: height and width of the result in pixels.
        """
        return target

    def _object_counts(self) -> npt.NDArray[np.int64] | None:
        """Return the number of objects in each target, int64 [n]; None if they are not lists."""
        return None

    def _pixel_size(self) -> Size | None:
        """Return the size of all images if :meth:`_read_pixels` is supported, else None."""
        return None

    def _read_pixels(self, indices: IndexArray) -> tuple[torch.Tensor, list[Any]]:
        """Return the pixels and targets of many samples, for a source with a pixel size.

        Args:
            indices: int64 [n], each in ``range(len(self))``.

        Returns:
            uint8 [n, 3, height, width] with any strides, and n targets, as from :meth:`read`.
        """
        raise NotImplementedError(f"{type(self).__name__} reads images one by one")

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @abstractmethod
    def read(self, index: int) -> EncodedSample:
        """Return the encoded sample at ``0 <= index < len(self)``, by random access.

        Many threads call it at once: it must have no side effects, and should release the GIL while
        it waits for storage.

        A source may add a second parameter, ``into: Memory | None = None``. The returned bytes may
        lie in the last memory that ``into`` returned, from its beginning.

        Raises:
            OSError: the storage failed; the loader retries. The message names the sample and index.
            ValueError: the record is malformed, and every retry would fail.
        """

    def open_for_loader(self, index: int) -> EncodedSample | OwnImage:
        """Return the sample of :meth:`read`, or an image that makes its pixels on request."""
        return self.read(index)

    def read_target_alone(self, index: int) -> Any:
        """Return the target of :meth:`read`, if possible without reading the image."""
        return self.read(index).target

    @abstractmethod
    def fingerprint(self) -> str:
        """Return the content id: equal for equal samples in equal order, at any location.

        It must be cheap: from names or an index, not from pixels.
        """

    def __getitem__(self, index: SupportsIndex) -> tuple[torch.Tensor, Any]:
        """Return ``(data, target)``; negative indices count from the end.

        Raises:
            IndexError: the index is outside ``[-len(self), len(self))``.
        """
        sample = self.read(from_the_start(index, self))
        return sample.data, sample.target


def from_the_start(index: SupportsIndex, source: Source) -> int:
    """Return an index in ``range(len(source))``; a negative one counts from the end.

    Raises:
        IndexError: the index is outside ``[-len(source), len(source))``.
    """
    number, length = operator.index(index), len(source)
    if not -length <= number < length:
        raise IndexError(
            f"index {number} is out of range for {type(source).__name__} with {length} samples. "
            f"Remedy: use -{length} <= index < {length}"
        )
    return number % length


@dataclass(frozen=True, slots=True)
class OwnImage:
    """An image whose source makes the pixels on request."""

    header: ImageHeader
    """Header of the pixels, as if they were a file."""
    target: Any
    """Target, as in :class:`EncodedSample`."""
    name: str
    """Name, as in :class:`EncodedSample`."""
    make: Callable[[Memory], torch.Tensor]
    """Makes uint8 [3, height, width] on the CPU, possibly in the given memory; raises as ``read``
    and a decoder do."""


def read_into(source: Source, index: int, into: Memory | None) -> EncodedSample:
    """Return ``source.read(index)``, read into ``into`` if ``read`` accepts ``into=None``."""
    read: Callable[..., EncodedSample] = source.read
    function = getattr(read, "__func__", None)
    if into is not None and type(function) is FunctionType and _takes_into(function):
        return read(index, into=into)
    return read(index)


@lru_cache(maxsize=64)
def _takes_into(function: FunctionType) -> bool:
    # For a decorated method, inspect the decorator's function, not the wrapped one.
    into = inspect.signature(function, follow_wrapped=False).parameters.get("into")
    return into is not None and into.default is None and into.kind is not into.POSITIONAL_ONLY


def reads_as(source: Source, kind: type[Any]) -> bool:
    """Return whether a source of this class uses the class's own ``read``.

    A ``read`` replaced by a subclass, a mixin or an attribute must not be bypassed.
    """
    return getattr(source.read, "__func__", None) is kind.read


def image_header(sample: EncodedSample | OwnImage, view: memoryview | None = None) -> ImageHeader:
    """Return the header of an image, parsed from its bytes.

    Args:
        view: the same bytes as ``sample.data``, if available.

    Raises:
        ValueError: the bytes are not an image, or its size differs from the target's.
    """
    if isinstance(sample, OwnImage):
        return sample.header
    header = probe(sample.data if view is None else view)
    if sample.size is not None:
        _check_size(sample.size, header)
    return header


def _check_size(size: Size, header: ImageHeader) -> None:
    """Refuse an image whose size differs from the size that its boxes and masks refer to."""
    if size != (header.height, header.width):
        raise ValueError(
            f"the target is of an image of {size[0]}x{size[1]} pixels, and this one "
            f"is {header.height}x{header.width} (height x width, EXIF orientation "
            f"{header.orientation} applied). Remedy: correct the annotations, or turn the file"
        )
    if header.orientation not in (1, 5, 6, 7, 8):
        raise ValueError(
            f"the image has EXIF orientation {header.orientation}, and its target may refer to "
            "the pixels before or after rotation. Remedy: write the file upright"
        )
