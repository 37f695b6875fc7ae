"""PreparedSource: a source's images, decoded and resized once and kept in files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch

from stateful_gpu_loader.datasets.record_store import (
    ENTRY_BYTES,
    HEAD_BYTES,
    INDEX_FILE,
    Entry,
    Record,
    RecordStore,
    target_in,
)
from stateful_gpu_loader.datasets.source import (
    OwnImage,
    Size,
    Source,
    from_the_start,
    image_header,
    reads_as,
)
from stateful_gpu_loader.datasets.storage.kept_files import (
    KeptFile,
    Owners,
    new_file,
    owners_for_folder,
)
from stateful_gpu_loader.datasets.storage.memory import Bytes, Memory, new_memory
from stateful_gpu_loader.datasets.wrapped import as_source
from stateful_gpu_loader.decoders import ImageHeader, make_decoder, probe
from stateful_gpu_loader.decoders.machine import package_versions
from stateful_gpu_loader.decoders.scaled import ScaledDecoder
from stateful_gpu_loader.errors import LoaderError
from stateful_gpu_loader.records import EncodedSample
from stateful_gpu_loader.transforms.compose import Compose, PipelineDraw
from stateful_gpu_loader.transforms.motion import at_rest, one_after_the_other
from stateful_gpu_loader.transforms.recipe import Recipe

LARGEST_SEGMENT = 1 << 28
SMALLEST_SEGMENT = 1 << 20
_SEGMENTS = 64
"""Number of files that ``max_bytes`` is divided into, so that many processes can fill them."""


class PreparedSource(Source):
    """The images of a source after deterministic recipes, each made once and kept.

    The first read of an image decodes it, applies ``recipes``, and keeps the pixels in
    ``directory`` for later reads. The loader's ``transform`` follows. A loader delivers exactly the
    pixels of ``source`` with ``recipes + transform`` on the CPU, however full the directory is.
    (Boxes may differ in the last bit if several recipes of the transform turn or scale them.)

    Several processes may fill and read a directory at the same time. ``stateful-gpu-loader
    prepare`` fills it in advance. A killed process leaves its finished images. A full disk or
    ``max_bytes`` stops the filling, but not the training. Records have checksums, and damaged
    records are made again. The CPU applies ``recipes``, even for batches on a GPU.

    If you replace files under the same names, remove the directory, unless the source's fingerprint
    notices, as a FolderSource's does with ``sizes_in_fingerprint=True``.

    Args:
        source: source of encoded images, or a Subset, concatenation or mixture of sources.
        directory: folder of the pixels, created if missing; use one for each source and recipes. A
            folder in ``/dev/shm`` is in memory.
        recipes: deterministic transforms to uint8, such as ``Resize(256)``; without recipes the
            decoded images are kept.
        max_bytes: largest size of the directory; None is unlimited.
        decoder: as the loader's ``decoder``, for the CPU. "auto" takes the directory's decoder.
        scaled_decoding: as the loader's ``scaled_decoding``.

    Attributes:
        source: the source.
        directory: the folder, absolute.
        recipes: the recipes, as a Compose.

    Raises:
        TypeError: ``source`` is not a source of images.
        ValueError: a recipe draws random numbers, does not return uint8, or cannot move the
            source's boxes and masks; the directory was made with another source, decoder or
            recipes; max_bytes is too small.
        OSError: the directory cannot be created or read.

    >>> import tempfile
    >>> from stateful_gpu_loader.transforms import Resize
    >>> class White(Source):
    ...     def __len__(self):
    ...         return 2
    ...     def read(self, index):
    ...         data = b"P6 6 4 255 " + bytes([255]) * (6 * 4 * 3)
    ...         return EncodedSample(torch.tensor(list(data), dtype=torch.uint8), index, "white")
    ...     def fingerprint(self):
    ...         return "white"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     prepared = PreparedSource(White(), folder, [Resize(2)])
    ...     data, target = prepared[1]
    ...     probe(data).height, probe(data).width, target
    ...     prepared.is_kept(0), prepared.is_kept(1)
    (2, 3, 1)
    (False, True)
    """

    source: Source
    directory: str
    recipes: Compose
    makes_pixels = True

    def __init__(
        self,
        source: Any,
        directory: str | os.PathLike[str],
        recipes: Sequence[Recipe | Compose] = (),
        *,
        max_bytes: int | None = None,
        decoder: str = "auto",
        scaled_decoding: bool = False,
    ) -> None:
        found = as_source(source)
        if found is None:
            raise TypeError(
                f"{type(source).__name__} is not a source of encoded images, so it cannot be "
                "decoded. Remedy: pass a FolderSource, TarSource or another Source"
            )
        self.source = found
        self.recipes = Compose(recipes)
        self.has_spatial_targets = found.has_spatial_targets
        self.suits_processes = type(self) is PreparedSource and found.suits_processes
        self.num_recipes_before = found.num_recipes_before + len(self.recipes.recipes)
        _check_recipes(self.recipes, found)
        folder = Path(os.path.abspath(os.path.expanduser(directory)))
        self.directory = str(folder)
        before = read_description(folder)
        plain = make_decoder(decoder, None if before is None else before.decoder)
        self._decoder = ScaledDecoder(plain) if scaled_decoding else plain
        index_bytes = ENTRY_BYTES * len(found)
        room = None if max_bytes is None else max_bytes - index_bytes
        description = begin(
            folder,
            Description(
                source=found.fingerprint(),
                recipes=self.recipes.fingerprint(),
                decoder=self._decoder.family,
                versions=(self._decoder.version(), *package_versions("torch", "torchvision")),
                segment_bytes=_segment_bytes(room, index_bytes),
            ),
            index_bytes=index_bytes,
        )
        # Sizes of images opened but not made yet, whose targets may move first.
        self._originals: dict[int, Size] = {}
        self._store = RecordStore(
            folder,
            key=description.key(),
            segment_bytes=description.segment_bytes,
            max_segments=None if room is None else room // description.segment_bytes,
        )

    def __len__(self) -> int:
        return len(self.source)

    def _object_counts(self) -> npt.NDArray[np.int64] | None:
        return self.source._object_counts()

    def is_kept(self, index: int) -> bool:
        """Return whether the image at ``0 <= index < len(self)`` is in the directory."""
        return self._store.entry(index) is not None

    def read(self, index: int, into: Memory | None = None) -> EncodedSample:
        """Return the image as a binary PPM, and its target.

        Boxes and masks are unchanged; :meth:`move_target` moves them.

        Raises:
            OSError: as the source's ``read``.
            ValueError: as the source's ``read``, or the image cannot be decoded.
            LoaderError: the recipes refuse an image of this size.
        """
        memory = into or new_memory
        kept = self._kept(index, memory)
        if kept is None:
            sample = self.source.read(index)
            _, record = self._made(index, sample, _header(sample))
            kept = record.ppm(memory), sample.target
        ppm, target = kept
        return EncodedSample(torch.from_numpy(ppm), target, self._name(index))

    def open_for_loader(self, index: int) -> EncodedSample | OwnImage:
        """Return an image whose pixels a loader requests when it crops them.

        So they are cropped while they are in the CPU cache.
        """
        if not reads_as(self, PreparedSource):
            return self.read(index)
        store = self._store
        if (entry := store.entry(index)) and (json := store.json(index, entry)) is not None:
            header = _header_after(self.recipes, (entry.height, entry.width))
            target = self._target_of(index, entry, json)
            return OwnImage(
                header, target, self._name(index), partial(self._kept_pixels, index, entry, header)
            )
        sample = self.source.read(index)
        before = _header(sample)
        if self.has_spatial_targets:
            self._originals[index] = before.height, before.width
        return OwnImage(
            _header_after(self.recipes, (before.height, before.width)),
            sample.target,
            self._name(index),
            lambda memory: self._made(index, sample, before)[0],
        )

    def read_target_alone(self, index: int) -> Any:
        if not reads_as(self, PreparedSource):
            return self.read(index).target
        return self.source.read_target_alone(index)

    def move_target(
        self, index: int, target: Any, motion: npt.NDArray[np.float64], size: Size
    ) -> Any:
        original = self._originals.get(index)
        if original is None and (entry := self._store.entry(index)) is not None:
            original = entry.height, entry.width
        if original is None:
            header = _header(self.source.read(index))
            original = header.height, header.width
        before = self.recipes.motion(_drawn(self.recipes, original), np.array([original]))
        return self.source.move_target(
            index, target, one_after_the_other(before, motion[None])[0], size
        )

    def fingerprint(self) -> str:
        """Return a text of the fingerprints of the source, the decoder and the recipes."""
        return (
            f"({self.source.fingerprint()}) prepared by {self._decoder.family} and "
            f"{self.recipes.fingerprint()}"
        )

    def __getitem__(self, index: SupportsIndex) -> tuple[torch.Tensor, Any]:
        data, target = super().__getitem__(index)
        if self.has_spatial_targets:
            header = probe(data)
            size = header.height, header.width
            target = self.move_target(from_the_start(index, self), target, at_rest(1)[0], size)
        return data, target

    def _name(self, index: int) -> str:
        return f"{type(self.source).__name__}[{index}] in {self.directory!r}"

    def _kept(self, index: int, memory: Memory) -> tuple[Bytes, Any] | None:
        """Return a kept image as PPM in ``memory``, and its target; None if it is not kept."""
        entry = self._store.entry(index)
        record = None if entry is None else self._store.record(index, entry, memory)
        if entry is None or record is None:
            return None
        end = len(record) - entry.json_bytes
        return record[:end], self._target_of(index, entry, record[end:].tobytes())

    def _target_of(self, index: int, entry: Entry, json: bytes) -> Any:
        """Return the target of a kept image, from the record or else from the source."""
        if entry.label is not None:
            return entry.label
        return target_in(json) if json else self.source.read_target_alone(index)

    def _kept_pixels(
        self, index: int, entry: Entry, header: ImageHeader, memory: Memory
    ) -> torch.Tensor:
        """Return a kept image, uint8 [3, height, width]; a damaged image is made again."""
        record = self._store.record(index, entry, memory)
        if record is None:
            sample = self.source.read(index)
            pixels = self._made(index, sample, _header(sample))[0]
            if pixels.shape[1:] != (header.height, header.width):
                raise LoaderError(
                    f"{self._name(index)} is damaged, and the size of its original has changed: "
                    f"it gives {tuple(pixels.shape[1:])} instead of "
                    f"{(header.height, header.width)} (height, width). Remedy: remove the "
                    "directory, because files of the source were replaced"
                )
            return pixels
        end = len(record) - entry.json_bytes
        interleaved = record[HEAD_BYTES:end].reshape(header.height, header.width, 3)
        return torch.from_numpy(interleaved.transpose(2, 0, 1))

    def _made(
        self, index: int, sample: EncodedSample, header: ImageHeader
    ) -> tuple[torch.Tensor, Record]:
        """Make and keep an image; return uint8 [3, height, width], and its record.

        Raises:
            ValueError: the image cannot be decoded.
        """
        size = header.height, header.width
        numbers = _drawn(self.recipes, size).sample(0)
        cut, num_cut = self.recipes.cut(size, numbers)
        try:
            image = self._decoder.decode_part(sample.data, header, cut.box, cut.resized)
        except ValueError as error:
            raise ValueError(f"{sample.name}: {error}") from error
        image = self.recipes.apply(image, numbers, num_cut)
        record = Record.of(image, sample.target)
        self._store.put(index, record, size)
        self._originals.pop(index, None)
        return image, record

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source!r}, {self.directory!r}, {self.recipes!r})"


def _header(sample: EncodedSample) -> ImageHeader:
    """Return the header of a source's image; a ValueError names the sample."""
    try:
        return image_header(sample)
    except ValueError as error:
        raise ValueError(f"{sample.name}: {error}") from error


@lru_cache(maxsize=1024)
def _drawn(recipes: Compose, size: Size) -> PipelineDraw:
    """Return the draw of deterministic recipes for images of one size."""
    try:
        return recipes.draw(0, 0, np.zeros(1, dtype=np.int64), np.array([size]))
    except ValueError as error:
        # A ValueError would mean a damaged image.
        raise LoaderError(f"{recipes!r} in a PreparedSource: {error}") from error


@lru_cache(maxsize=1024)
def _header_after(recipes: Compose, size: Size) -> ImageHeader:
    """Return the header of an image after the recipes, from its size before them."""
    height, width = _drawn(recipes, size).sizes[0].tolist()
    return ImageHeader("ppm", height=height, width=width, orientation=1)


def _check_recipes(recipes: Compose, source: Source) -> None:
    for recipe in recipes.recipes:
        if recipe.num_draws:
            raise ValueError(
                f"{recipe!r} draws random numbers, so its pixels cannot be kept. Remedy: "
                "put it, and what follows it, into the loader's transform"
            )
    if recipes.output_dtype != torch.uint8 or recipes.memory_format != torch.contiguous_format:
        raise ValueError(
            f"{recipes!r} gives {recipes.output_dtype}, {recipes.memory_format}, but uint8 is "
            "kept. Remedy: put ToDtype, Normalize and ToMemoryFormat into the loader's transform"
        )
    immovable = recipes.immovable() if source.has_spatial_targets else None
    if immovable is not None:
        raise ValueError(
            f"{type(source).__name__} has boxes or masks, and {immovable!r} cannot move them. "
            "Remedy: recipes of stateful_gpu_loader.transforms"
        )


def _segment_bytes(room: int | None, index_bytes: int) -> int:
    """Return the largest size of a pixel file, for ``room`` bytes in all."""
    if room is None:
        return LARGEST_SEGMENT
    if room < SMALLEST_SEGMENT:
        raise ValueError(
            f"max_bytes = {room + index_bytes} leaves {room} bytes for pixels beside an index of "
            f"{index_bytes}. Remedy: at least {SMALLEST_SEGMENT + index_bytes}"
        )
    return min(max(room // _SEGMENTS, SMALLEST_SEGMENT), LARGEST_SEGMENT)


_FILE = "prepared.json"
_LAYOUT = 3
"""Version of the folder's layout."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """The settings that determine the pixels in a folder, and their layout."""

    source: str
    recipes: str
    decoder: str
    versions: tuple[str, ...]
    """Versions of the packages that made the pixels; the last bits may depend on them."""
    segment_bytes: int
    """Largest size of a pixel file."""
    layout: int = _LAYOUT

    def key(self) -> bytes:
        """Return 16 bytes that differ if the folder's pixels would differ."""
        text = json.dumps([self.source, self.recipes, self.decoder])
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    def check_types(self) -> None:
        """Raise ValueError unless each field has its type."""
        texts = (self.source, self.recipes, self.decoder, *self.versions)
        numbers = (self.segment_bytes, self.layout)
        if not all(type(text) is str for text in texts) or not all(
            type(number) is int and 0 < number < 1 << 32 for number in numbers
        ):
            raise ValueError(f"its fields are {asdict(self)}")

    def check(self, folder: Path, found: Description) -> None:
        """Refuse a folder of other pixels; warn about other versions.

        Raises:
            ValueError: the folder was made with other settings.
        """
        for name in ("layout", "source", "recipes", "decoder"):
            present, before = getattr(self, name), getattr(found, name)
            if present != before:
                raise ValueError(
                    f"{str(folder)!r} was prepared with another {name}: {before!r:.200} instead of "
                    f"{present!r:.200}. Remedy: give another directory, or remove this one"
                )
        if self.versions != found.versions:
            warnings.warn(
                f"the images in {str(folder)!r} were begun by {found.versions!r:.200}, this is "
                f"{self.versions}: images that are added may differ in their last bits",
                stacklevel=4,
            )


def read_description(folder: Path) -> Description | None:
    """Return the description in a folder; None if there is none.

    Raises:
        ValueError: the description is damaged, or from a later version of this package.
        PermissionError: the file is not trusted (:class:`KeptFile`).
        OSError: the file cannot be read.
    """
    path = folder / _FILE
    try:
        kept = KeptFile(str(path), os.O_RDONLY, owners_for_folder(folder))
    except FileNotFoundError:
        return None
    with open(kept.number, "rb", closefd=False) as file:
        content = file.read()
    try:
        fields = json.loads(content.decode())
        found = Description(**{**fields, "versions": tuple(fields["versions"])})
        found.check_types()
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(
            f"{str(path)!r} is not a description of prepared images: {error!s:.200}. Remedy: "
            "remove its folder, or give another one"
        ) from error
    return found


def begin(folder: Path, wanted: Description, *, index_bytes: int) -> Description:
    """Create a folder unless another process has, and return its description.

    Raises:
        PermissionError: a file in the folder is not trusted (:class:`KeptFile`).
        OSError: the folder cannot be created or read.
        ValueError: the folder was made with other settings.
    """
    found = read_description(folder)
    if found is None:
        _make(folder, wanted, index_bytes)
        found = read_description(folder)
    if found is None:
        raise FileNotFoundError(f"{str(folder / _FILE)!r} was removed while it was being written")
    wanted.check(folder, found)
    with contextlib.suppress(FileNotFoundError):
        KeptFile(str(folder / INDEX_FILE), os.O_RDONLY, owners_for_folder(folder))
    return found


def _make(folder: Path, wanted: Description, index_bytes: int) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        owners = owners_for_folder(folder)
        index = KeptFile(str(folder / INDEX_FILE), os.O_RDWR | os.O_CREAT, owners)
        # The index only grows: another process may already use it.
        if os.fstat(index.number).st_size < index_bytes:
            os.truncate(index.number, index_bytes)
        _write_once(folder, json.dumps(asdict(wanted), indent=1), owners)
    except PermissionError:
        raise
    except OSError as error:
        raise OSError(
            error.errno,
            f"{error.strerror}, so no directory of prepared images can be begun. Remedy: make room "
            "there, or give another directory",
            str(folder),
        ) from error


def _write_once(folder: Path, text: str, owners: Owners) -> None:
    """Write the whole description, unless another process was faster."""
    with (
        new_file(folder / _FILE, owners) as (file, temporary),
        contextlib.suppress(FileExistsError),
    ):
        file.write(text.encode())
        file.close()
        os.link(temporary, folder / _FILE)
