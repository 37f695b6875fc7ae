"""FolderSource: image files, from class folders, a file list or paths given in Python."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from stateful_gpu_loader.datasets.folder.listing import list_images, read_file_list
from stateful_gpu_loader.datasets.name_table import NameTable
from stateful_gpu_loader.datasets.source import Source
from stateful_gpu_loader.datasets.storage.failures import failed
from stateful_gpu_loader.datasets.storage.memory import Memory, new_memory
from stateful_gpu_loader.datasets.storage.read_file import read_file
from stateful_gpu_loader.records import EncodedSample
from stateful_gpu_loader.state.content_id import ContentDigest

AnyPath = str | os.PathLike[str]

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp")
"""The endings of what the decoders read."""


class FolderSource(Source):
    """Image files and a class for each, listed once.

    ``FolderSource(root)`` reads class folders in the order of
    ``torchvision.datasets.ImageFolder``: classes sorted by name and numbered from 0, the images
    of a class sorted by folder and name, at any depth. As in ImageFolder,
    files beside the class folders are left out, and a folder without class folders is an error.
    Unlike there, files named ``._*.jpg``, which macOS writes, are no images.
    :meth:`from_file_list` and :meth:`from_paths` keep the order that they are given.

    Args:
        root: the folder of the class folders.
        extensions: files that end otherwise are left out; upper and lower case are alike.
        allow_empty: classes without images are kept, instead of being an error.
        sizes_in_fingerprint: the content id includes the size of each file, so that files that
            were replaced under the same name are noticed; costs one stat a file, once.
        cache_dir: where the listing of 10,000 images or more is kept, which is taken as long as no
            folder has changed since; None is beside ``root``, or where that cannot be written
            ``$XDG_CACHE_HOME/stateful_gpu_loader``. On FUSE, where folders need not tell that they
            have changed, all is listed each time.

    Attributes:
        root: the folder, absolute; None where paths came without one.
        classes: the names of the classes; empty where there are only numbers.
        class_to_idx: the number of each class.
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
        folder = _absolute(root)
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
        """The files that a text file names, one ``relative/path label`` a line, in its order.

        Args:
            path: the text file, as DALI's and Caffe's: UTF-8; paths may contain spaces; blank
                lines and lines that start with ``#`` are skipped.
            root: the folder that the paths are relative to; None is that of the text file.
            sizes_in_fingerprint: as for the class.

        Raises:
            OSError: the text file cannot be read. (The images are not looked for until read.)
            ValueError: a line has no integer label, or there is no line.
        """
        file = _absolute(path)
        folder = file.parent if root is None else _absolute(root)
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
        """The files at ``paths``, in their order.

        Args:
            paths: absolute, or relative to ``root``, or without it to the present working
                directory; a sorted list, where it comes from a directory listing.
            labels: an integer for each; None numbers the paths from 0, as DALI's reader does.
            root: where it is given, the content id depends on the paths below it alone, and
                stays the same when the folder moves.
            sizes_in_fingerprint: as for the class.

        Raises:
            ValueError: no paths, not as many labels as paths, or a label beyond
                64 bits.
            TypeError: a label is no integer, or ``paths`` is a single string.

        >>> FolderSource.from_paths(["b.jpg", "a.jpg"], [7, 8], root="photos").targets.tolist()
        [7, 8]
        """
        if isinstance(paths, str):
            raise TypeError(f"paths is the string {paths!r}. Remedy: pass a list of paths")
        folder = None if root is None else _absolute(root)
        above = "" if folder is None else os.path.join(folder, "")
        names = [os.fspath(path).removeprefix(above) for path in paths]
        if not names:
            raise ValueError("no paths were given. Remedy: give at least one")
        source = cls.__new__(cls)
        targets = _targets(labels, len(names))
        source._settle(folder, NameTable(names), targets, [], sizes_in_fingerprint)
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
        """Absolute path of the file at ``0 <= index < len(self)``."""
        name = self._names[index]
        return name if name.startswith(os.sep) else self._parent + name

    def read(self, index: int, into: Memory | None = None) -> EncodedSample:
        """The file's bytes (none, if it is empty), its class and its path.

        Raises:
            OSError: of the kind that the system reports; it names the path and the index.
        """
        path = self.path(index)
        try:
            data = read_file(path, into or new_memory)
        except OSError as error:
            raise failed(error, path, f"sample {index = }") from error
        return EncodedSample(data, int(self.targets[index]), path)

    def fingerprint(self) -> str:
        """blake2b of the relative paths and classes in order (and the sizes, if asked for).

        Equal wherever ``root`` lies and in whatever order the system lists files; another one
        once a file is added, removed, renamed, moved to another class or to another index.
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


def _absolute(path: AnyPath) -> Path:
    return Path(os.path.abspath(os.path.expanduser(path)))


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""  # it was removed, which matters to no absolute path


def _targets(labels: Iterable[SupportsIndex] | None, num_paths: int) -> npt.NDArray[np.int64]:
    if labels is None:
        return np.arange(num_paths, dtype=np.int64)
    numbers = []
    for index, label in enumerate(labels):
        try:
            number = operator.index(label)
        except TypeError as error:
            raise TypeError(
                f"label {index} is {label!r}, no integer. Remedy: number the classes"
            ) from error
        if not -(2**63) <= number < 2**63:
            raise ValueError(f"label {index} is {number}, beyond 64 bits. Remedy: number from 0")
        numbers.append(number)
    if len(numbers) != num_paths:
        raise ValueError(
            f"{num_paths} paths and {len(numbers)} labels. Remedy: give one label for each path"
        )
    return np.array(numbers, dtype=np.int64)
