"""FolderSource: image files from class folders, a file list, paths, torchvision or timm.

Class folders have the order of torchvision.datasets.ImageFolder. The text file is the file_list of
DALI and Caffe.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.datasets.name_table import KeyTable, NameTable
from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.datasets.storage.failures import failed
from stateful_gpu_loader.datasets.storage.index_files import (
    Index,
    are_unchanged,
    array_in,
    cached_index,
    check_ends,
    progress_bar,
    times_before_listing,
)
from stateful_gpu_loader.datasets.storage.memory import Memory, new_memory
from stateful_gpu_loader.datasets.storage.open_files import read_file
from stateful_gpu_loader.datasets.storage.paths import AnyPath, absolute, is_apple_double
from stateful_gpu_loader.datasets.torchvision_files import files_of
from stateful_gpu_loader.records import EncodedSample
from stateful_gpu_loader.state.contents import ContentDigest

if TYPE_CHECKING:
    import torch

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp")
"""Endings of the files that the decoders read."""


class FolderSource(Source):
    """Image files with a class each, listed once.

    ``FolderSource(root)`` reads class folders in the order of ``torchvision.datasets.ImageFolder``:
    classes sorted by name and numbered from 0, the images of a class sorted by folder and name, at
    any depth. Files beside the class folders are left out, and at least one class folder must
    exist. Unlike in ImageFolder, macOS's ``._*.jpg`` files are left out. :meth:`from_file_list`,
    :meth:`from_paths` and :meth:`from_dataset` keep the given order.

    Args:
        root: folder of the class folders.
        extensions: endings of image files, case-insensitive; other files are left out.
        allow_empty: whether classes may have no images; otherwise they are an error.
        sizes_in_fingerprint: whether the content id includes each file's size, which reveals files
            replaced under the same name; costs one stat for each file, once.
        cache_dir: directory for the listing of 10,000 images or more, which is reused until a
            folder changes; None keeps it beside ``root``, or in
            ``$XDG_CACHE_HOME/stateful_gpu_loader`` if that folder cannot be written. Folders on
            FUSE, whose times may stay unchanged, are listed every time.

    Attributes:
        root: the folder, absolute; None for paths without a root.
        classes: names of the classes; empty if labels are only numbers.
        class_to_idx: number of each class.
        targets: int64 [num_samples], read-only: the class of each sample.

    Raises:
        FileNotFoundError: no such folder, no class folder, or no image in a class.
        NotADirectoryError: ``root`` is a file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for name in ("dog/rex.jpg", "cat/tom.jpg", "cat/leo.jpg"):
    ...         path = Path(root, name)
    ...         path.parent.mkdir(exist_ok=True)
    ...         _ = path.write_bytes(b"...")
    ...     source = FolderSource(root)
    ...     source.classes, source.targets.tolist(), source.read(0).data.numel()
    (['cat', 'dog'], [0, 0, 1], 3)
    """

    _batch_type: list[torch.Tensor]
    """Type of a loader's batches, for type checkers only: ``[images, labels]``."""

    suits_processes = True
    root: str | None
    classes: list[str]
    class_to_idx: dict[str, int]
    targets: npt.NDArray[np.int64]

    def __init__(
        self,
        root: AnyPath,
        *,
        extensions: Sequence[str] = EXTENSIONS,
        allow_empty: bool = False,
        sizes_in_fingerprint: bool = False,
        cache_dir: AnyPath | None = None,
    ) -> None:
        folder = Path(absolute(root))
        endings = tuple(
            ending.lower()
            for ending in ([extensions] if isinstance(extensions, str) else extensions)
        )
        kept = None if cache_dir is None else os.fspath(cache_dir)
        listing = list_images(folder, endings, kept)
        classes, counts = listing.classes, listing.counts.tolist()
        empty = [name for name, count in zip(classes, counts, strict=True) if not count]
        if len(empty) == len(classes) or (empty and not allow_empty):
            raise FileNotFoundError(
                f"no image in {len(empty)} of the {len(classes)} class folders of "
                f"{str(folder)!r}: {', '.join(empty[:5])}{', ...' * (len(empty) > 5)}. Looked for "
                f"files ending with {', '.join(endings)}. Remedy: remove those folders, or pass "
                "extensions= or allow_empty=True"
            )
        targets = np.repeat(np.arange(len(classes), dtype=np.int64), counts)
        self._settle(folder, listing.names, targets, classes, sizes_in_fingerprint)

    @classmethod
    def from_file_list(
        cls, path: AnyPath, root: AnyPath | None = None, *, sizes_in_fingerprint: bool = False
    ) -> FolderSource:
        """Return a source of the files listed in a text file, one ``relative/path label`` a line.

        Args:
            path: the text file, as for DALI and Caffe: UTF-8; paths may contain spaces; blank
                lines and lines that start with ``#`` are skipped.
            root: folder that the paths are relative to; None is the text file's folder.
            sizes_in_fingerprint: as for the class.

        Raises:
            OSError: the text file cannot be read. (Images are opened only when they are read.)
            ValueError: a line has no integer label, or there is no line.
        """
        file = Path(absolute(path))
        folder = file.parent if root is None else Path(absolute(root))
        names, labels = read_file_list(file)
        return cls.from_paths(names, labels, folder, sizes_in_fingerprint=sizes_in_fingerprint)

    @classmethod
    def from_paths(
        cls,
        paths: Iterable[AnyPath],
        labels: Iterable[SupportsIndex] | None = None,
        root: AnyPath | None = None,
        *,
        sizes_in_fingerprint: bool = False,
    ) -> FolderSource:
        """Return a source of the files at ``paths``, in the given order.

        Args:
            paths: absolute, or relative to ``root``, or without a root to the current working
                directory. Sort a directory listing first.
            labels: an integer for each path; None numbers the paths from 0, as DALI's reader does.
            root: if given, the content id covers only the paths below it, so the folder can move.
            sizes_in_fingerprint: as for the class.

        Raises:
            ValueError: no paths, different numbers of labels and paths, or a label beyond 64 bits.
            TypeError: a label is not an integer, or ``paths`` is a single string.

        >>> FolderSource.from_paths(["b.jpg", "a.jpg"], [7, 8], root="photos").targets.tolist()
        [7, 8]
        """
        if isinstance(paths, str):
            raise TypeError(f"paths is the string {paths!r}. Remedy: pass a list of paths")
        folder = None if root is None else Path(absolute(root))
        above = "" if folder is None else os.path.join(folder, "")
        names = [os.fspath(path).removeprefix(above) for path in paths]
        if not names:
            raise ValueError("no paths were given. Remedy: give at least one")
        source = cls.__new__(cls)
        targets = _targets(labels, len(names))
        source._settle(folder, NameTable(names), targets, [], sizes_in_fingerprint)
        return source

    @classmethod
    def from_dataset(cls, dataset: Any, *, sizes_in_fingerprint: bool = False) -> FolderSource:
        """Return a source of the files and classes of a torchvision or timm dataset, in its order.

        torchvision's dataset is an ImageFolder, ImageNet, DatasetFolder, Country211, EuroSAT,
        CLEVRClassification, DTD, FGVCAircraft, Flowers102, Food101, GTSRB, Imagenette, LFWPeople,
        OxfordIIITPet, Places365, RenderedSST2, StanfordCars or SUN397. timm's dataset is an
        ImageDataset over a folder. A Subset of one of them, as from ``random_split``, is accepted
        too. Files must be opened by torchvision's default loader, or as RGB images by timm. A
        subclass must not replace ``__getitem__``.

        Only files and targets are used. Pass the dataset's ``transform`` to the loader, as recipes.
        Unlike torchvision and timm, the decoders apply the EXIF orientation. timm replaces an image
        that Pillow cannot read by the next one; see ``on_bad_sample`` of the loader.

        Args:
            dataset: the dataset, without a ``target_transform``.
            sizes_in_fingerprint: as for the class.

        Raises:
            TypeError: the dataset or its loader is not supported.
            ValueError: the dataset has a ``target_transform``, targets that are not single classes,
                no targets, or files of a format that the decoders do not read.

        >>> import tempfile
        >>> from torchvision.datasets import ImageFolder
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for name in ("dog/rex.jpg", "cat/tom.jpg"):
        ...         Path(root, name).parent.mkdir()
        ...         _ = Path(root, name).write_bytes(b"...")
        ...     source = FolderSource.from_dataset(ImageFolder(root))
        ...     source.fingerprint() == FolderSource(root).fingerprint(), source.class_to_idx
        (True, {'cat': 0, 'dog': 1})
        """
        found = files_of(dataset)
        source = cls.from_paths(
            found.paths, found.targets, found.root, sizes_in_fingerprint=sizes_in_fingerprint
        )
        source.classes, source.class_to_idx = found.classes, found.class_to_idx
        return source

    def _settle(
        self,
        root: Path | None,
        names: NameTable,
        targets: npt.NDArray[np.int64],
        classes: list[str],
        sizes_in_fingerprint: bool,
    ) -> None:
        targets.setflags(write=False)
        self.root = None if root is None else str(root)
        self._parent = os.path.join(_working_directory() if root is None else root, "")
        self.classes = classes
        self.class_to_idx = {name: number for number, name in enumerate(classes)}
        self.targets = targets
        self.sizes_in_fingerprint = sizes_in_fingerprint
        self._names = names
        self._fingerprint: str | None = None

    def __len__(self) -> int:
        return len(self._names)

    def path(self, index: int) -> str:
        """Return the absolute path of the file at ``0 <= index < len(self)``."""
        name = self._names[index]
        return name if name.startswith(os.sep) else self._parent + name

    def read(self, index: int, into: Memory | None = None) -> EncodedSample:
        """Return the file's bytes (empty for an empty file), its class and its path.

        Raises:
            OSError: the system's error, of the same type; the message has the path and the index.
        """
        path = self.path(index)
        try:
            data = read_file(path, into or new_memory)
        except OSError as error:
            raise failed(error, path, f"sample {index = }") from error
        return EncodedSample(data, int(self.targets[index]), path)

    def fingerprint(self) -> str:
        """Return a blake2b of the relative paths and classes in order, and of the sizes if chosen.

        It does not depend on the location of ``root`` or the system's listing order. It changes
        when a file is added, removed, renamed, or moved to another class or index.
        """
        if self._fingerprint is None:
            digest = ContentDigest("files 1")
            digest.add_blocks((*self._names.blocks(), self.targets.astype("<i8").tobytes()))
            if self.sizes_in_fingerprint:
                sizes = [os.stat(self.path(index)).st_size for index in range(len(self))]
                digest.add(np.array(sizes, dtype="<i8").tobytes())
            self._fingerprint = f"{len(self)} files, {digest.text()}"
        return self._fingerprint

    def __repr__(self) -> str:
        classes = f", {len(self.classes)} classes" if self.classes else ""
        return f"{type(self).__name__}({self.root!r}, {len(self)} files{classes})"


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""  # the directory was removed; absolute paths do not need it


def _targets(labels: Iterable[SupportsIndex] | None, num_paths: int) -> npt.NDArray[np.int64]:
    if labels is None:
        return np.arange(num_paths, dtype=np.int64)
    numbers = []
    for index, label in enumerate(labels):
        try:
            number = operator.index(label)
        except TypeError as error:
            raise TypeError(
                f"label {index} is {label!r}, not an integer. Remedy: number the classes"
            ) from error
        if not -(2**63) <= number < 2**63:
            raise ValueError(f"label {index} is {number}, beyond 64 bits. Remedy: number from 0")
        numbers.append(number)
    if len(numbers) != num_paths:
        raise ValueError(
            f"{num_paths} paths and {len(numbers)} labels. Remedy: give one label for each path"
        )
    return np.array(numbers, dtype=np.int64)


KEPT_FROM = 10_000
"""Smallest number of images whose listing is kept; fewer are listed in milliseconds."""

LABEL = re.compile(r"[+-]?[0-9]{1,18}")
"""At most 18 digits, which fit into 64 bits."""


@dataclass(frozen=True, eq=False)
class Listing:
    """The images of class folders."""

    classes: list[str]
    """Sorted names, including classes without images."""
    counts: npt.NDArray[np.int64]
    """int64 [num_classes]: number of images of each class."""
    names: NameTable
    """Paths relative to the root, separated by ``/``: by class, then folder, then name, sorted by
    code point, so the order is the same in every locale."""


def list_images(root: Path, extensions: tuple[str, ...], cache_dir: str | None = None) -> Listing:
    """Return the images of all class folders, at any depth, from a kept or a new listing.

    Links to folders are followed, but a link to a folder above itself is an error.

    Args:
        extensions: endings in lower case; other files are left out, and so are macOS's ``._``
            files.
        cache_dir: directory for the listing; None is beside ``root``, as for :func:`cached_index`.

    Raises:
        FileNotFoundError: ``root`` does not exist, or contains no folder.
        NotADirectoryError: ``root`` is a file.
        OSError: a folder cannot be listed.
        ValueError: links form a loop.
    """
    if not root.exists():
        raise FileNotFoundError(f"no such folder: {str(root)!r}. Remedy: check the path")
    if not root.is_dir():
        raise NotADirectoryError(
            f"not a folder: {str(root)!r}. Remedy: give the folder of the class folders; a list of "
            "files is read by FolderSource.from_file_list"
        )
    endings = hashlib.blake2b(json.dumps(extensions).encode(), digest_size=4).hexdigest()
    index: Any = cached_index(
        str(root),
        kind=f"folder-2-{endings}",
        build=lambda: _build(root, extensions),
        check=_check,
        cache_dir=cache_dir,
        fits=lambda index: _fits(root, index),
    )
    names = NameTable.of(KeyTable.joined(index["names"].tobytes(), index["name_ends"]))
    return Listing(_split(index["classes"]), index["counts"], names)


def read_file_list(path: Path) -> tuple[list[str], list[int]]:
    """Return the paths and labels of a file list, in order.

    A line is a path and, after white space, a label. Blank lines and lines that start with ``#``
    are skipped. The file is UTF-8.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line has no integer label, or there is no line.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "list.txt"
    ...     _ = path.write_text("cats/tom the cat.jpg 0\\ndogs/rex.jpg 1\\n")
    ...     read_file_list(path)
    (['cats/tom the cat.jpg', 'dogs/rex.jpg'], [0, 1])
    """
    names, labels = [], []
    with open(path, encoding="utf-8-sig", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, start=1):
            words = line.rsplit(maxsplit=1)
            if not words or line.lstrip().startswith("#"):
                continue
            if len(words) == 1 or not LABEL.fullmatch(words[1]):
                raise ValueError(
                    f"{str(path)!r}, line {number}: {line.rstrip()[-80:]!r} does not end with an "
                    "integer label. Remedy: write 'relative/path label' on each line"
                )
            names.append(words[0].lstrip())
            labels.append(int(words[1]))
    if not names:
        raise ValueError(
            f"{str(path)!r} names no file. Remedy: write 'relative/path label' on each line"
        )
    return names, labels


def _build(root: Path, extensions: tuple[str, ...]) -> Index:
    times = {"": times_before_listing(str(root))}
    classes = _list_classes(root)
    counts: list[int] = []

    def images() -> Iterator[str]:
        for class_name in classes:
            found = sorted(_walk(root, class_name, extensions, (), times))
            counts.append(sum(len(names) for _, names in found))
            for folder, names in found:
                names.sort()
                yield from map(f"{folder}/".__add__, names)
            note(len(counts))

    with progress_bar(f"listing {root}", len(classes), " classes") as note:
        keys = NameTable(images()).keys
    return {
        "classes": _joined(classes),
        "counts": np.array(counts, dtype=np.int64),
        "names": np.frombuffer(keys.text, dtype=np.uint8),
        "name_ends": keys.ends(),
        "folders": _joined(times),
        "times": np.array(list(times.values()), dtype=np.int64),
    }


def _check(index: Index, size: int) -> None:
    """Raise ValueError unless the arrays are a listing whose names stay inside the folder."""
    classes = _split(array_in(index, "classes", np.uint8))
    folders = _split(array_in(index, "folders", np.uint8))
    counts = array_in(index, "counts", np.int64)
    text = array_in(index, "names", np.uint8).tobytes()
    ends = array_in(index, "name_ends", np.int64)
    times = array_in(index, "times", np.int64, columns=2)
    check_ends("name_ends", ends, total=len(text), shortest=1)
    num_names = len(ends) - 1
    if len(times) != len(folders) or len(counts) != len(classes):
        raise ValueError("its arrays do not match")
    # Each count is at most the expected sum, so the sum cannot overflow.
    if ((counts < 0) | (counts > num_names)).any() or counts.sum() != num_names:
        raise ValueError(f"its counts are not those of {num_names} names")
    if any("/" in name or name in ("", ".", "..") for name in classes):
        raise ValueError("a class in it is not a folder of the listed one")
    _check_inside(folder.encode(errors="surrogateescape") for folder in folders if folder)
    firsts = np.frombuffer(text, dtype=np.uint8)[ends[:-1]]
    if (firsts == ord("/")).any() or b"\0" in text:
        raise ValueError("a name in it is absolute, or holds a zero byte")
    dots = np.array([match.start() for match in re.finditer(rb"\.\.", text)], dtype=np.int64)
    suspects = np.unique(np.searchsorted(ends, dots, side="right") - 1)
    _check_inside(text[ends[number] : ends[number + 1]] for number in suspects.tolist())


def _check_inside(names: Iterable[bytes]) -> None:
    for name in names:
        if name.startswith(b"/") or b".." in name.split(b"/"):
            raise ValueError(f"the name {name!r} in it leads out of the listed folder")


def _fits(root: Path, index: Any) -> bool:
    if int(index["counts"].sum()) < KEPT_FROM:
        return False
    return are_unchanged(
        (f"{root}/{folder}" for folder in _split(index["folders"])), index["times"]
    )


def _list_classes(root: Path) -> list[str]:
    with os.scandir(root) as entries:
        classes = sorted(entry.name for entry in entries if entry.is_dir())
    if not classes:
        raise FileNotFoundError(
            f"no class folder in {str(root)!r}: each class must be a folder in it. Remedy: "
            "give the folder above, or FolderSource.from_paths(paths) for images without classes"
        )
    return classes


def _walk(
    root: Path,
    folder: str,
    extensions: tuple[str, ...],
    above: tuple[str, ...],
    times: dict[str, tuple[int, int]],
) -> Iterator[tuple[str, list[str]]]:
    """Yield ``folder`` and each folder below it, with its images; record their times."""
    path = os.path.realpath(root / folder)
    if path in above:
        raise ValueError(
            f"the folder {str(root / folder)!r} is a link to {path!r}, which holds it. Remedy: "
            "remove that link"
        )
    times[folder] = times_before_listing(path)
    folders, names = [], []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir():
                folders.append(entry.name)
            elif entry.name.lower().endswith(extensions) and not is_apple_double(entry.name):
                names.append(entry.name)
    yield folder, names
    for name in folders:
        yield from _walk(root, f"{folder}/{name}", extensions, (*above, path), times)


def _joined(names: Iterable[str]) -> npt.NDArray[np.uint8]:
    """Join file names, which contain no zero bytes, in one array."""
    return np.frombuffer(b"".join(os.fsencode(name) + b"\0" for name in names), dtype=np.uint8)


def _split(names: npt.NDArray[np.uint8]) -> list[str]:
    return [os.fsdecode(name) for name in names.tobytes().split(b"\0")[:-1]]
